package inputs

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/usher-rtc/usher/internal/config"
)

//go:embed defaults.json
var defaults []byte

// Input is one number as the file of inputs has it.
type Input struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// From is the command that measures the value, the field of the library whose
	// default it is, or "assumed".
	From string `json:"from"`
}

// Inputs are all numbers, in the units that defaults.json states.
type Inputs struct {
	// What users do.
	WeeklyUsers, CallsPerWeek, CallSeconds, PeakFactor float64
	PacketsPerSecond, PayloadBytes, CheckSeconds       float64
	RedialSeconds                                      float64
	// How the fleet is laid out.
	Regions, Zones, FarShare, StoreMilliseconds   float64
	RelayCores, RelayLoad                         float64
	TransceiverCores, TransceiverLoad, RedisLoad  float64
	RelayPacketsFull, RelayPacketsLoaded          float64
	FlowBytes, SessionKBytes, SessionGoroutines   float64
	HostPacketMicroseconds, HostSetupMilliseconds float64
	RedisEntryBytes, RedisWrites                  float64
	FlowIdleSeconds, StoreTTLSeconds              float64
	StoreRefreshes, StoreLookups, StoreRefill     float64
	RelayFlows, HostSessions, FrameBytes          float64
}

// field is where a named input goes, and what it may be.
type field struct {
	to        *float64
	low, high float64
	whole     bool
}

func (in *Inputs) fields() map[string]field {
	const lots = 1e12
	return map[string]field{
		"weekly-users":       {&in.WeeklyUsers, 1, lots, false},
		"calls-per-week":     {&in.CallsPerWeek, 1e-6, 1e6, false},
		"call-seconds":       {&in.CallSeconds, 1, 86400, false},
		"peak-factor":        {&in.PeakFactor, 1, 6, false},
		"packets-per-second": {&in.PacketsPerSecond, 0.1, 1e5, false},
		"payload-bytes":      {&in.PayloadBytes, 1, 65507, false},
		"check-seconds":      {&in.CheckSeconds, 0.01, 60, false},
		"regions":            {&in.Regions, 1, 4096, true},
		"zones":              {&in.Zones, 2, 64, true},
		"far-share":          {&in.FarShare, 0, 1, false},
		"redial-seconds":     {&in.RedialSeconds, 0.001, 3600, false},
		"store-milliseconds": {&in.StoreMilliseconds, 0, 50, false},
		"relay-cores":        {&in.RelayCores, 1, 1024, true},
		"relay-load":         {&in.RelayLoad, 0.01, 1, false},
		"transceiver-cores":  {&in.TransceiverCores, 1, 1024, true},
		"transceiver-load":   {&in.TransceiverLoad, 0.01, 1, false},
		"redis-load":         {&in.RedisLoad, 0.01, 1, false},

		"relay-packets-full":       {&in.RelayPacketsFull, 1, lots, false},
		"relay-packets-loaded":     {&in.RelayPacketsLoaded, 1, lots, false},
		"flow-bytes":               {&in.FlowBytes, 1, lots, false},
		"session-kbytes":           {&in.SessionKBytes, 1, lots, false},
		"session-goroutines":       {&in.SessionGoroutines, 0, lots, false},
		"host-packet-microseconds": {&in.HostPacketMicroseconds, 0.001, lots, false},
		"host-setup-milliseconds":  {&in.HostSetupMilliseconds, 0, lots, false},
		"redis-entry-bytes":        {&in.RedisEntryBytes, 1, lots, false},
		"redis-writes":             {&in.RedisWrites, 1, lots, false},

		"flow-idle-seconds":    {&in.FlowIdleSeconds, 0, 86400, false},
		"store-ttl-seconds":    {&in.StoreTTLSeconds, 3, 86400, false},
		"store-refreshes":      {&in.StoreRefreshes, 1, 100, true},
		"store-lookups":        {&in.StoreLookups, 1, 100_000, false},
		"store-refill-seconds": {&in.StoreRefill, 0.1, 3600, false},
		"relay-flows":          {&in.RelayFlows, 1, lots, true},
		"host-sessions":        {&in.HostSessions, 1, lots, true},
		"frame-bytes":          {&in.FrameBytes, 0, 65507, false},
	}
}

// Set changes one input by its name. The error is a *config.Error that names it.
func (in *Inputs) Set(name string, value float64) error {
	f, ok := in.fields()[name]
	switch {
	case !ok:
		return config.Errorf(name, "there is no such input")
	case math.IsNaN(value) || value < f.low || value > f.high:
		return config.Errorf(name, "%g is outside %g to %g", value, f.low, f.high)
	case f.whole && value != math.Trunc(value):
		return config.Errorf(name, "%g is not a whole number", value)
	}
	*f.to = value
	return nil
}

// Default returns the numbers of defaults.json.
func Default() (Inputs, []Input) {
	var in Inputs
	list, err := in.Read(bytes.NewReader(defaults))
	if err == nil && len(list) != len(in.fields()) {
		err = errors.New("an input is missing")
	}
	if err != nil {
		panic("defaults.json: " + err.Error()) // it is part of the program
	}
	return in, list
}

// Read changes those inputs that a JSON list has, and returns the list. After an
// error some may have changed.
func (in *Inputs) Read(r io.Reader) ([]Input, error) {
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	var list []Input
	if err := d.Decode(&list); err != nil {
		return nil, err
	}
	if d.More() {
		return nil, errors.New("more than one list")
	}
	seen := make(map[string]bool)
	for _, i := range list {
		if seen[i.Name] {
			return nil, fmt.Errorf("%s is there twice", i.Name)
		}
		seen[i.Name] = true
		if err := in.Set(i.Name, i.Value); err != nil {
			return nil, err
		}
	}
	return list, nil
}
