import { Call, Meter, showLevel } from './call.js';

const $ = (id) => document.getElementById(id);
const show = (id, value) => { $(id).textContent = value ?? '–'; };
const millis = (v) => (v === undefined ? '–' : `${Math.round(v)} ms`);
const seconds = (v) => `${((v ?? 0) / 1000).toFixed(1)} s`;
// Louder than this is speech to this page, as a root mean square.
const AUDIBLE = 0.01;

let call, context, stream, outMeter, timer;
let turn;             // the newest row of the table
let lastWord = 0;     // when the microphone was last loud
let awaiting;         // the row whose answer has not been heard yet
let lost;             // when the service was lost

function state(name, text) {
  document.body.dataset.state = name;
  show('talk-label', { connecting: 'Connecting', connected: 'Hang up' }[name] ?? 'Talk');
  $('mute').disabled = $('respond').disabled = name !== 'connected';
  if (text) show('status', text);
}

async function talk() {
  state('connecting', 'Connecting …');
  context = new AudioContext();
  try {
    stream = await navigator.mediaDevices.getUserMedia({
      // Without echo cancellation the agent would interrupt itself.
      audio: { echoCancellation: true, noiseSuppression: true, autoGainControl: true },
    });
    outMeter = new Meter(context, stream);
    call = await Call.start({ stream, context, label: 'events', onstate: changed, onevent: happened });
  } catch (e) {
    await hangUp();
    state('failed', `No call: ${e.message}`);
    return;
  }
  state('connected', 'Say something, and pause.');
  timer = setInterval(levels, 20);
}

function changed(name) {
  if (name === 'failed') {
    hangUp().then(() => state('failed', 'The connection was lost.'));
  }
}

async function hangUp() {
  clearInterval(timer);
  const ended = call;
  call = turn = awaiting = lost = undefined;
  stream?.getTracks().forEach((t) => t.stop());
  outMeter?.close();
  await ended?.close();
  await context?.close().catch(() => {});
  context = stream = outMeter = undefined;
  mute(false);
  service('', '–');
  showLevel($('level-out'), 0);
  showLevel($('level-in'), 0);
}

// levels also measures what the user notices: from the last word into the
// microphone to the first sound of the answer.
function levels() {
  if (!call) return;
  const [said, heard] = [outMeter.level(), call.meter.level()];
  showLevel($('level-out'), said);
  showLevel($('level-in'), heard);
  if (said > AUDIBLE && !awaiting) lastWord = performance.now();
  if (heard > AUDIBLE && awaiting) {
    if (lastWord) awaiting.heard.textContent = millis(performance.now() - lastWord);
    awaiting = undefined;
  }
}

function addTurn() {
  const row = $('turns').insertRow(0);
  turn = { row };
  for (const name of ['number', 'spoke', 'answer', 'after', 'heard', 'outcome']) turn[name] = row.insertCell();
  turn.number.textContent = $('turns').rows.length;
  while ($('turns').rows.length > 50) $('turns').deleteRow(-1);
}

// service says how the service is: here, away or nothing at all.
function service(how, text) {
  document.body.dataset.service = how;
  show('service', text);
}

const handlers = {
  // From the transceiver.
  service({ state: is, attempt }) {
    if (is === 'ready') {
      if (lost) {
        show('away', millis(performance.now() - lost));
        show('status', 'The service is back. Go on talking.');
      }
      lost = undefined;
      service('here', 'connected');
      return;
    }
    lost ??= performance.now();
    service('away', attempt > 1 ? `lost, attempt ${attempt}` : 'lost');
    show('status', 'The service was lost. You are still connected; another one will take over.');
    if (turn && !turn.outcome.textContent) turn.outcome.textContent = 'lost with the service';
  },
  // From the service.
  hello({ pid, connection }) {
    show('pid', pid);
    show('connection', connection);
  },
  turn_started() {
    addTurn();
    awaiting = undefined;
    show('status', 'Listening …');
  },
  hearing({ speech_ms }) { turn.spoke.textContent = `${seconds(speech_ms)} …`; },
  turn_ended({ speech_ms }) {
    if (!turn || turn.answer.textContent) addTurn(); // asked for without a word
    turn.spoke.textContent = seconds(speech_ms);
  },
  answer_started({ answer, length_ms, latency_ms }) {
    if (!turn) addTurn();
    turn.answer.textContent = `${answer}, ${seconds(length_ms)}`;
    turn.after.textContent = millis(latency_ms);
    turn.outcome.textContent = 'speaking';
    if (latency_ms) awaiting = turn;
    show('status', 'Answering. Speak to stop it.');
  },
  answer_ended() {
    turn.outcome.textContent = 'said';
    show('status', 'Your turn.');
  },
  interrupted({ played_ms, dropped_ms, stop_ms }) {
    turn.outcome.textContent = `stopped after ${seconds(played_ms)}, ${seconds(dropped_ms)} unsaid; it took ${stop_ms ?? 0} ms`;
  },
};

function happened(event) {
  const { type, ...rest } = event;
  const line = document.createElement('li');
  const name = document.createElement('b');
  name.textContent = type;
  line.append(`${new Date().toISOString().slice(17, 23)} `, name, ` ${JSON.stringify(rest)}`);
  $('events').prepend(line);
  while ($('events').children.length > 100) $('events').lastChild.remove();
  if (Object.hasOwn(handlers, type)) handlers[type](event);
  // For whoever watches this page: tests, and other scripts.
  document.dispatchEvent(new CustomEvent('agent', { detail: event }));
}

function mute(on) {
  stream?.getAudioTracks().forEach((t) => { t.enabled = !on; });
  $('mute').setAttribute('aria-pressed', on);
  show('mute', on ? 'Muted' : 'Mute');
}

$('talk').addEventListener('click', async () => {
  if (document.body.dataset.state === 'connecting') return;
  if (!call) return talk();
  await hangUp();
  state('idle', 'The call has ended.');
});
$('mute').addEventListener('click', () => mute($('mute').getAttribute('aria-pressed') !== 'true'));
$('respond').addEventListener('click', () => call?.channel.send('{"type":"respond"}'));
// A closed tab must not wait for the server's idle limit.
addEventListener('pagehide', () => {
  if (call?.location) fetch(call.location, { method: 'DELETE', keepalive: true });
});
