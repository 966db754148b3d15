import { Call, Meter, showLevel, toneStream } from './call.js';

const $ = (id) => document.getElementById(id);
const show = (id, value) => { $(id).textContent = value ?? '–'; };
const millis = (v) => `${v < 10 ? v.toFixed(1) : Math.round(v)} ms`;
const source = () => document.querySelector('input[name=source]:checked').value;

let call, context, stream, outMeter, timers = [];

function state(name, text) {
  document.body.dataset.state = name;
  show('talk-label', { connecting: 'Connecting', connected: 'Hang up' }[name] ?? 'Talk');
  if (text) show('status', text);
}

async function audio() {
  if (source() === 'microphone') {
    try {
      return await navigator.mediaDevices.getUserMedia({ audio: true });
    } catch {
      document.querySelector('input[value=tone]').checked = true;
      show('status', 'No microphone here, so a test tone speaks for you.');
    }
  }
  return toneStream(context);
}

async function talk() {
  state('connecting', 'Connecting …');
  context = new AudioContext();
  try {
    stream = await audio();
    outMeter = new Meter(context, stream);
    call = await Call.start({ stream, context, onstate: changed });
  } catch (e) {
    await hangUp();
    state('failed', `No call: ${e.message}`);
    return;
  }
  state('connected', source() === 'tone' ? 'The tone you hear has been to the transceiver and back.' : 'Say something.');
  show('signalling', millis(call.signallingMillis));
  show('connect', millis(call.connectMillis));
  $('ufrag').innerHTML = '<span class="key"></span><span></span>';
  $('ufrag').children[0].textContent = call.ufrag[0];
  $('ufrag').children[1].textContent = call.ufrag.slice(1);
  timers = [setInterval(levels, 60), setInterval(details, 1000), setInterval(ping, 1000)];
  details();
  ping();
}

function changed(name) {
  if (name === 'failed') {
    hangUp().then(() => state('failed', 'The connection was lost.'));
  }
}

async function hangUp() {
  timers.forEach(clearInterval);
  timers = [];
  const ended = call;
  call = undefined;
  stream?.getTracks().forEach((t) => t.stop());
  outMeter?.close();
  await ended?.close();
  await context?.close().catch(() => {});
  context = stream = outMeter = undefined;
  showLevel($('level-out'), 0);
  showLevel($('level-in'), 0);
}

function levels() {
  if (!call) return;
  showLevel($('level-out'), outMeter.level());
  showLevel($('level-in'), call.meter.level());
}

let pings = 0;
async function ping() {
  const own = call;
  try {
    const ms = await own.echo(`ping ${++pings}`);
    if (own === call) show('rtt', millis(ms));
  } catch { /* the connection state says more */ }
}

async function details() {
  const own = call;
  let info;
  try {
    info = await (await fetch(`/api/call?ufrag=${own.ufrag}`)).json();
  } catch {
    return;
  }
  if (own !== call) return;
  show('owner', info.owner);
  show('client', info.client);
  show('key-id', info.key_id);
  show('cluster', info.cluster);
  show('host', info.host);
  show('session', info.session);
  show('up', info.to_owner);
  show('down', info.to_client);
  const [audio, ingress] = [await own.received(), await own.ingress()];
  if (own !== call) return;
  show('ingress', ingress);
  show('back', audio.packets);
  show('lost', audio.lost);
}

$('talk').addEventListener('click', async () => {
  if (document.body.dataset.state === 'connecting') return;
  if (!call) return talk();
  await hangUp();
  state('idle', 'The call has ended.');
});
// A closed tab must not wait for the server's idle limit.
addEventListener('pagehide', () => {
  if (call?.location) fetch(call.location, { method: 'DELETE', keepalive: true });
});
if (!navigator.mediaDevices) document.querySelector('input[value=tone]').checked = true;
