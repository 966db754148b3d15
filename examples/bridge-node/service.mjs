// A service behind usher's bridge (docs/bridge.md), in one file of JavaScript: it
// says back what it hears, and runs the application of the conformance tests.
//
//   npm install && npm start            # ws://127.0.0.1:9000
//   PORT=9001 CODEC=pcm16/24000 npm start

import { WebSocketServer } from 'ws';

const PROTOCOL = 'usher.bridge.v1';
const HEADER = 16;
const AUDIO = 1, TEXT = 2, BINARY = 3;
const CODEC = process.env.CODEC ?? 'opus';

// Call is one connection: all that a service needs of the protocol.
class Call {
  constructor(socket, serve) {
    this.socket = socket;
    this.serve = serve;
    this.start = null;       // the transceiver's first message
    this.replies = new Map(); // by id: who waits for interrupted or marked
    this.nextID = 1;
    this.position = 0;       // of our own audio, in microseconds
    socket.on('message', (data, isBinary) => {
      try {
        if (isBinary) this.#binary(data); else this.#text(JSON.parse(data.toString()));
      } catch (err) {
        this.refuse(err.message);
      }
    });
    socket.on('close', () => this.serve.end?.(this));
    socket.on('error', () => socket.terminate()); // too long, or no WebSocket at all
  }

  #text(message) {
    if (typeof message !== 'object' || message === null || typeof message.type !== 'string') {
      throw new Error('a text message without a type');
    }
    if (!this.start) {
      if (message.type !== 'start') throw new Error('no start');
      if (!message.codecs?.includes(CODEC)) throw new Error(`this service needs ${CODEC}`);
      this.start = message;
      this.#say({ type: 'ready', codec: CODEC });
      this.serve.start?.(this);
      return;
    }
    switch (message.type) {
      case 'interrupted':
      case 'marked':
        this.replies.get(message.id)?.(message);
        this.replies.delete(message.id);
        break;
      case 'missed':
      case 'dropped':
        console.log(this.start.session, JSON.stringify(message));
        break;
      case 'end':
        this.socket.close(1000);
    } // all others are of a later version, or playback, which only who paces needs
  }

  #binary(data) {
    if (!this.start) throw new Error('a binary message before start');
    if (data.length < HEADER) throw new Error('a binary message without a header');
    const payload = data.subarray(HEADER);
    switch (data[0]) {
      case AUDIO:
        this.serve.audio(this, payload, {
          level: data[1] & 1 ? data[2] : null,
          voice: (data[1] & 2) !== 0,
          milliseconds: data[3] / 2,
          lost: data.readUInt32BE(4),
          time: Number(data.readBigUInt64BE(8)),
        });
        break;
      case TEXT:
        this.serve.event(this, payload.toString());
        break;
      case BINARY:
        this.serve.event(this, payload);
    }
  }

  #say(message) { this.socket.send(JSON.stringify(message)); }

  #ask(type) {
    const id = this.nextID++;
    return new Promise((resolve) => {
      this.replies.set(id, resolve);
      this.#say({ type, id });
    });
  }

  #send(kind, payload, time = 0) {
    const message = Buffer.alloc(HEADER + payload.length);
    message[0] = kind;
    message.writeBigUInt64BE(BigInt(time), 8);
    payload.copy(message, HEADER);
    this.socket.send(message);
  }

  // write sends audio to the client: one Opus packet, or PCM.
  write(payload, milliseconds) {
    this.#send(AUDIO, payload, this.position);
    this.position += milliseconds * 1000;
  }

  // send sends an event: a string or a Buffer.
  send(event) {
    if (typeof event === 'string') this.#send(TEXT, Buffer.from(event)); else this.#send(BINARY, event);
  }

  interrupt() { return this.#ask('interrupt'); }                // {played_ms, dropped_ms, …}
  mark() { return this.#ask('mark'); }                          // when all of it was sent
  hangup(reason) { this.#say({ type: 'end', reason }); }        // the transceiver closes
  refuse(why) { this.socket.close(1002, why.slice(0, 100)); }   // a fault of the other side
}

// The application.
const echo = {
  audio(call, payload, { milliseconds }) { call.write(payload, milliseconds); },

  async event(call, event) {
    switch (event) {
      case '!interrupt': {
        const cut = await call.interrupt();
        call.send(`interrupted ${Math.trunc(cut.played_ms)} ${Math.trunc(cut.dropped_ms)}`);
        break;
      }
      case '!mark':
        await call.mark();
        call.send('marked');
        break;
      case '!session': {
        const { token, session, connection, client, metadata, resume } = call.start;
        call.send(JSON.stringify({ token, session, connection, client, metadata, after: resume?.after ?? '' }));
        break;
      }
      case '!hangup':
        call.hangup('asked');
        break;
      default:
        call.send(event);
    }
  },
};

const server = new WebSocketServer({
  host: '127.0.0.1',
  port: Number(process.env.PORT ?? 9000),
  maxPayload: HEADER + 65536,
  perMessageDeflate: false,
  handleProtocols: (offered) => (offered.has(PROTOCOL) ? PROTOCOL : false),
});
server.on('connection', (socket) => {
  if (socket.protocol !== PROTOCOL) socket.close(1002, `this is ${PROTOCOL}`);
  else new Call(socket, echo);
});
server.on('listening', () => console.log(`ws://127.0.0.1:${server.address().port}`));
server.on('error', (err) => { console.error(`bridge-node: ${err.message}`); process.exit(1); });
for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => process.exit(0));
