// A client of the calls API without any library. The token comes in the address,
// after the #, which browsers do not send.
const $ = (id) => document.getElementById(id);
const token = location.hash.slice(1);
let call;

const show = (text, ours) => {
  const line = document.createElement('li');
  line.textContent = `${new Date().toLocaleTimeString()}  ${text}`;
  line.className = ours ? 'ours' : '';
  $('events').prepend(line);
  while ($('events').children.length > 200) $('events').lastChild.remove();
};

const status = (text, calling) => {
  $('status').textContent = text;
  $('talk').textContent = calling ? 'Hang up' : 'Talk';
  $('talk').disabled = false;
  $('stop').disabled = !calling;
};

const told = (event) => {
  show(event.type + (event.error ? `: ${event.error.message}` : '') + (event.audio_end_ms ? ` at ${event.audio_end_ms} ms` : ''));
  if (event.type === 'usher.end') hangUp(event.detail ?? event.reason);
};

const send = (event) => {
  show(event.type, true);
  call.events.send(JSON.stringify(event));
};

const start = async () => {
  $('talk').disabled = true;
  const pc = new RTCPeerConnection();
  call = { pc, player: new Audio(), events: pc.createDataChannel('oai-events') };
  call.events.onmessage = (e) => told(JSON.parse(e.data));
  call.events.onopen = () => status('Connected: talk.', true);
  pc.ontrack = (e) => { call.player.srcObject = e.streams[0]; call.player.play(); };
  pc.onconnectionstatechange = () => { if (pc.connectionState === 'failed') hangUp('the connection was lost'); };
  try {
    call.microphone = await navigator.mediaDevices.getUserMedia({ audio: { echoCancellation: true } });
    for (const track of call.microphone.getAudioTracks()) pc.addTrack(track, call.microphone);
    await pc.setLocalDescription();
    const form = new FormData();
    form.set('sdp', pc.localDescription.sdp);
    form.set('session', JSON.stringify({ type: 'realtime', instructions: 'Repeat what you hear.' }));
    const response = await fetch('/v1/realtime/calls', { method: 'POST', headers: { Authorization: `Bearer ${token}` }, body: form });
    if (response.status !== 201) throw new Error((await response.json()).detail);
    call.location = response.headers.get('Location');
    await pc.setRemoteDescription({ type: 'answer', sdp: await response.text() });
  } catch (e) {
    hangUp(e.message);
  }
};

const hangUp = (reason) => {
  const { pc, location, microphone, player } = call ?? {};
  call = undefined;
  pc?.close();
  microphone?.getTracks().forEach((track) => track.stop());
  if (player) player.srcObject = null;
  if (location) fetch(`${location}/hangup`, { method: 'POST', headers: { Authorization: `Bearer ${token}` } }).catch(() => {});
  status(reason, false);
};

$('talk').onclick = () => (call ? hangUp('Press Talk.') : start());
$('stop').onclick = () => {
  send({ type: 'response.cancel' });
  send({ type: 'output_audio_buffer.clear' });
};
