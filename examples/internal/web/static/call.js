// One call: offer, one HTTP round trip, answer. Nothing here is special to
// usher; any WebRTC client that can POST an offer works the same way.

const attribute = (sdp, name) => sdp.match(new RegExp(`^a=${name}:(.*)$`, 'm'))?.[1].trim() ?? '';

// toneStream returns a stream with a soft test tone, for machines without a
// microphone. Its volume rises and falls so that an echo is easy to hear.
export function toneStream(context) {
  const oscillator = new OscillatorNode(context, { frequency: 440 });
  const volume = new GainNode(context, { gain: 0.18 });
  const tremolo = new OscillatorNode(context, { frequency: 1.5 });
  const depth = new GainNode(context, { gain: 0.12 });
  const out = new MediaStreamAudioDestinationNode(context);
  oscillator.connect(volume).connect(out);
  tremolo.connect(depth).connect(volume.gain);
  oscillator.start();
  tremolo.start();
  return out.stream;
}

export class Meter {
  constructor(context, stream) {
    this.node = new AnalyserNode(context, { fftSize: 1024 });
    this.source = new MediaStreamAudioSourceNode(context, { mediaStream: stream });
    this.source.connect(this.node);
    this.samples = new Float32Array(this.node.fftSize);
  }
  // The root mean square of the last 1,024 samples, 0 to 1.
  level() {
    this.node.getFloatTimeDomainData(this.samples);
    let sum = 0;
    for (const s of this.samples) sum += s * s;
    return Math.sqrt(sum / this.samples.length);
  }
  close() {
    this.source.disconnect();
  }
}

// showLevel sets a bar to a level of Meter's.
export function showLevel(bar, rms) {
  // The ear works in ratios: 60 dB across the bar.
  const share = Math.max(0, 1 + Math.log10(Math.max(rms, 1e-6)) / 3).toFixed(3);
  bar.style.setProperty('--level', share);
  bar.setAttribute('aria-valuenow', share);
}

export class Call {
  // start makes a call with the audio of stream. The promise resolves when the
  // peer connection is connected and the data channel is open. onevent gets
  // each JSON event of the channel.
  static async start({ stream, context, endpoint = '/v1/realtime/calls', timeout = 15000, label = 'echo', onstate, onevent }) {
    const call = new Call();
    call.context = context;
    const pc = (call.pc = new RTCPeerConnection());
    pc.addEventListener('connectionstatechange', () => onstate?.(pc.connectionState));
    for (const track of stream.getAudioTracks()) pc.addTrack(track, stream);
    call.pings = new Map();
    call.channel = pc.createDataChannel(label);
    if (onevent) call.channel.addEventListener('message', (e) => onevent(JSON.parse(e.data)));
    call.channel.addEventListener('message', (e) => call.#answered(e.data));
    const opened = new Promise((resolve) => call.channel.addEventListener('open', resolve, { once: true }));
    const heard = new Promise((resolve) => pc.addEventListener('track', (e) => resolve(e), { once: true }));
    try {
      // No candidates in the offer and no wait for them: the server learns
      // this client's address from its first packet.
      await pc.setLocalDescription(await pc.createOffer());
      const begin = performance.now();
      const response = await fetch(endpoint, {
        method: 'POST',
        headers: { 'Content-Type': 'application/sdp' },
        body: pc.localDescription.sdp,
      });
      if (response.status !== 201) throw new Error(`${response.status}: ${(await response.text()).trim()}`);
      call.location = new URL(response.headers.get('Location'), response.url).href;
      call.answer = await response.text();
      call.ufrag = attribute(call.answer, 'ice-ufrag');
      const answered = performance.now();
      await pc.setRemoteDescription({ type: 'answer', sdp: call.answer });
      await Promise.race([
        opened,
        new Promise((_, reject) =>
          setTimeout(() => reject(new Error(`no connection after ${timeout} ms (${pc.connectionState})`)), timeout)),
      ]);
      call.signallingMillis = answered - begin;
      call.connectMillis = performance.now() - answered;
      const { track, streams } = await heard;
      call.remote = streams[0] ?? new MediaStream([track]);
      // Chromium feeds a remote stream to WebAudio only while an element plays it.
      call.player = new Audio();
      call.player.srcObject = call.remote;
      await call.player.play();
      call.meter = new Meter(context, call.remote);
    } catch (e) {
      await call.close();
      throw e;
    }
    return call;
  }

  #answered(data) {
    this.pings.get(data)?.();
    this.pings.delete(data);
  }

  // echo sends text over the data channel and resolves with the milliseconds
  // until the same text came back.
  echo(text, timeout = 5000) {
    return new Promise((resolve, reject) => {
      const begin = performance.now();
      const timer = setTimeout(() => {
        this.pings.delete(text);
        reject(new Error(`"${text}" did not come back in ${timeout} ms`));
      }, timeout);
      this.pings.set(text, () => {
        clearTimeout(timer);
        resolve(performance.now() - begin);
      });
      this.channel.send(text);
    });
  }

  // received returns how many packets came back and were lost, and the loudness of the sound
  // in them (root mean square, 0 to 1), averaged over the call.
  async received() {
    const out = { packets: 0, lost: 0, loudness: 0 };
    for (const s of (await this.pc.getStats()).values()) {
      if (s.type !== 'inbound-rtp' || s.kind !== 'audio') continue;
      out.packets = s.packetsReceived;
      out.lost = s.packetsLost;
      if (s.totalSamplesDuration > 0) out.loudness = Math.sqrt(s.totalAudioEnergy / s.totalSamplesDuration);
    }
    return out;
  }

  // ingress returns the address that this client sends to, once it has settled
  // for one: a moment after the first packets.
  async ingress() {
    const stats = [...(await this.pc.getStats()).values()];
    const pair = stats.find((s) => s.type === 'candidate-pair' && s.nominated && s.state === 'succeeded');
    const remote = stats.find((s) => s.type === 'remote-candidate' && s.id === pair?.remoteCandidateId);
    return remote && `${remote.address}:${remote.port}`;
  }

  async close() {
    this.meter?.close();
    if (this.player) this.player.srcObject = null;
    this.pc.close();
    if (this.location) await fetch(this.location, { method: 'DELETE' }).catch(() => {});
  }
}
