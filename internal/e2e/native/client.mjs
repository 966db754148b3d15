// Makes one call with a WebRTC client that is no browser: node client.mjs KIND URL.
// It sends numbered audio packets and a message, waits for them to come back and
// writes what it found as one line of JSON. The Go test decides what is right.
const [kind, url] = process.argv.slice(2);
const PACKETS = 150;
const OPUS = 111;
const SSRC = 0x75736872;

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const attribute = (sdp, name) => sdp.match(new RegExp(`^a=${name}:(.*)$`, 'm'))?.[1].trim() ?? '';
const limit = (promise, ms, what) =>
  Promise.race([promise, sleep(ms).then(() => Promise.reject(new Error(`no ${what} in ${ms} ms`)))]);

// post sends the offer and returns the answer.
async function post(offer) {
  const response = await fetch(url, { method: 'POST', headers: { 'Content-Type': 'application/sdp' }, body: offer });
  const text = await response.text();
  if (response.status !== 201) throw new Error(`POST: ${response.status}: ${text}`);
  out.location = new URL(response.headers.get('Location'), response.url).href;
  out.ufrag = attribute(text, 'ice-ufrag');
  out.answer = text;
  begin = performance.now();
  return text;
}

// packet returns RTP with a packet number in it (RFC 3550 section 5.1).
function packet(n) {
  const b = Buffer.alloc(12 + 60);
  b[0] = 0x80;
  b[1] = OPUS;
  b.writeUInt16BE(n + 1, 2);
  b.writeUInt32BE(960 * n, 4);
  b.writeUInt32BE(SSRC, 8);
  b[12] = 0x78; // RFC 6716 section 3.1: 20 ms of mono
  b.writeUInt32BE(n, 13);
  return b;
}

// talk sends the packets in real time. A timer that is late is caught up with.
async function talk(send) {
  const start = performance.now();
  for (let n = 0; n < PACKETS; n++) {
    await sleep(Math.max(0, start + 20 * n - performance.now()));
    send(n);
  }
  out.sent = PACKETS;
}

const out = { sent: 0, back: 0, connect: 0, echoed: '', problem: '' };
const seen = new Set();
let begin = 0;

// heard takes the payload of a packet that came back.
function heard(payload) {
  if (payload.length === 60) seen.add(payload.readUInt32BE(1));
  out.back = seen.size;
}

async function allBack() {
  for (const end = performance.now() + 2000; out.back < PACKETS && performance.now() < end; ) await sleep(20);
}

const message = `hello from ${kind}`;

const clients = {
  async werift() {
    const { RTCPeerConnection, MediaStreamTrack } = await import('werift');
    const pc = new RTCPeerConnection({ iceServers: [] });
    const track = new MediaStreamTrack({ kind: 'audio' });
    pc.addTransceiver(track, { direction: 'sendrecv' });
    pc.onTrack.subscribe((t) => t.onReceiveRtp.subscribe((rtp) => heard(rtp.payload)));
    const channel = pc.createDataChannel('echo');
    const opened = new Promise((resolve) => channel.stateChanged.subscribe((state) => state === 'open' && resolve()));
    const echoed = new Promise((resolve) => channel.onMessage.subscribe((data) => resolve(String(data))));
    await pc.setLocalDescription(await pc.createOffer());
    await pc.setRemoteDescription({ type: 'answer', sdp: await post(pc.localDescription.sdp) });
    await limit(opened, 15000, 'open data channel');
    out.connect = performance.now() - begin;
    channel.send(message);
    await talk((n) => track.writeRtp(packet(n)));
    out.echoed = await limit(echoed, 5000, 'echo');
    await allBack();
  },

  async libdatachannel() {
    const { default: ndc } = await import('node-datachannel');
    const pc = new ndc.PeerConnection('client', { iceServers: [], disableAutoNegotiation: true });
    const audio = new ndc.Audio('0', 'SendRecv');
    audio.addOpusCodec(OPUS);
    audio.addSSRC(SSRC, 'client', 'client', 'audio');
    const track = pc.addTrack(audio);
    track.onMessage((b) => {
      if (b[1] >= 192 && b[1] <= 223) return; // RTCP
      heard(Buffer.from(b).subarray(12 + 4 * (b[0] & 15)));
    });
    const channel = pc.createDataChannel('echo');
    const opened = new Promise((resolve) => channel.onOpen(resolve));
    const echoed = new Promise((resolve) => channel.onMessage((data) => resolve(String(data))));
    const described = new Promise((resolve) => pc.onLocalDescription((sdp) => resolve(sdp)));
    pc.setLocalDescription('offer');
    pc.setRemoteDescription(await post(await limit(described, 5000, 'offer')), 'answer');
    await limit(opened, 15000, 'open data channel');
    out.connect = performance.now() - begin;
    channel.sendMessage(message);
    await talk((n) => track.sendMessageBinary(packet(n)));
    out.echoed = await limit(echoed, 5000, 'echo');
    await allBack();
  },

  // Libwebrtc encodes and decodes by itself: what counts is that sound comes back.
  async libwebrtc() {
    const { default: wrtc } = await import('@roamhq/wrtc');
    const pc = new wrtc.RTCPeerConnection({ bundlePolicy: 'max-bundle' });
    const source = new wrtc.nonstandard.RTCAudioSource();
    pc.addTrack(source.createTrack());
    let sink;
    let loud = 0;
    pc.ontrack = (e) => {
      sink = new wrtc.nonstandard.RTCAudioSink(e.track);
      sink.ondata = ({ samples }) => {
        let sum = 0;
        for (const s of samples) sum += (s / 32768) ** 2;
        if (Math.sqrt(sum / samples.length) > 0.05) loud++;
      };
    };
    const channel = pc.createDataChannel('echo');
    const opened = new Promise((resolve) => (channel.onopen = resolve));
    const echoed = new Promise((resolve) => (channel.onmessage = (e) => resolve(String(e.data))));
    await pc.setLocalDescription(await pc.createOffer());
    await pc.setRemoteDescription({ type: 'answer', sdp: await post(pc.localDescription.sdp) });
    await limit(opened, 15000, 'open data channel');
    out.connect = performance.now() - begin;
    channel.send(message);
    let phase = 0;
    await talk(() => {
      for (let half = 0; half < 2; half++) {
        const samples = Int16Array.from({ length: 480 }, () => 10000 * Math.sin((phase += (2 * Math.PI * 440) / 48000)));
        source.onData({ samples, sampleRate: 48000, bitsPerSample: 16, channelCount: 1, numberOfFrames: 480 });
      }
    });
    out.echoed = await limit(echoed, 5000, 'echo');
    await sleep(300); // the jitter buffer
    out.back = Math.floor(loud / 2); // two pieces of 10 ms each
    sink?.stop();
  },
};

try {
  await clients[kind]();
} catch (e) {
  out.problem = String(e?.message ?? e);
}
if (out.location) await fetch(out.location, { method: 'DELETE' }).catch(() => {});
process.stdout.write(JSON.stringify(out) + '\n', () => process.exit(0));
