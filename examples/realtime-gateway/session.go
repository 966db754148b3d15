package main

import (
	"encoding/json"
	"errors"
)

// object is a JSON object of which only a part is known.
type object map[string]json.RawMessage

var (
	errNotObject = errors.New("the session has to be a JSON object")

	// pcmFormat is what goes over the WebSocket, whatever a client asks for: its
	// own audio is Opus.
	pcmFormat = json.RawMessage(`{"type":"audio/pcm","rate":24000}`)
	oldFormat = json.RawMessage(`"pcm16"`)
)

// firstUpdate returns the session.update for the session that came with an
// offer, if one did, and the model in it.
func firstUpdate(session json.RawMessage) (update []byte, model string, err error) {
	if session, err = withPCM(session); err != nil {
		return nil, "", err
	}
	var known struct {
		Model string `json:"model"`
	}
	if json.Unmarshal(session, &known) != nil {
		return nil, "", errors.New("the session's model has to be a string")
	}
	update, err = json.Marshal(object{"type": json.RawMessage(`"session.update"`), "session": session})
	return update, known.Model, err
}

// withPCM sets the audio formats of a session. A session of the API's first
// version, which names them otherwise, stays one.
func withPCM(session json.RawMessage) (json.RawMessage, error) {
	s, err := parse(session)
	if err != nil {
		return nil, err
	}
	_, oldIn := s["input_audio_format"]
	_, oldOut := s["output_audio_format"]
	if oldIn || oldOut {
		s["input_audio_format"], s["output_audio_format"] = oldFormat, oldFormat
		return json.Marshal(s)
	}
	if _, ok := s["type"]; !ok {
		s["type"] = json.RawMessage(`"realtime"`)
	}
	audio, err := parse(s["audio"])
	if err != nil {
		return nil, err
	}
	for _, side := range []string{"input", "output"} {
		part, err := parse(audio[side])
		if err != nil {
			return nil, err
		}
		part["format"] = pcmFormat
		if audio[side], err = json.Marshal(part); err != nil {
			return nil, err
		}
	}
	if s["audio"], err = json.Marshal(audio); err != nil {
		return nil, err
	}
	return json.Marshal(s)
}

// parse reads an object; nothing and null are an empty one.
func parse(raw json.RawMessage) (object, error) {
	o := make(object)
	if len(raw) > 0 && json.Unmarshal(raw, &o) != nil {
		return nil, errNotObject
	}
	if o == nil { // null
		o = make(object)
	}
	return o, nil
}

// interrupts reads from a session, as upstream describes it, whether the user's
// speech is to interrupt an answer. It is, unless something says otherwise.
func interrupts(session json.RawMessage) bool {
	type detection struct {
		Interrupt *bool `json:"interrupt_response"`
	}
	var known struct {
		Turn  *detection `json:"turn_detection"` // of the API's first version
		Audio struct {
			Input struct {
				Turn *detection `json:"turn_detection"`
			} `json:"input"`
		} `json:"audio"`
	}
	if json.Unmarshal(session, &known) != nil {
		return true
	}
	for _, d := range []*detection{known.Turn, known.Audio.Input.Turn} {
		if d != nil && d.Interrupt != nil {
			return *d.Interrupt
		}
	}
	return true
}

// rename returns an event with another type.
func rename(event []byte, to string) []byte {
	o, err := parse(event)
	if err != nil {
		return event
	}
	o["type"], _ = json.Marshal(to)
	out, err := json.Marshal(o)
	if err != nil {
		return event
	}
	return out
}
