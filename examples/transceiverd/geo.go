package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"

	"github.com/usher-rtc/usher/transceiver"
	"github.com/usher-rtc/usher/transceiver/geo"
)

// places is the file of -geo:
//
//	{
//	  "region_header": "X-Client-Region",
//	  "default": "eu",
//	  "places": [
//	    {"region": "eu", "latitude": 50.1, "longitude": 8.7, "ingresses": [{"id": 1, "advertise": "203.0.113.10:3478"}]},
//	    {"region": "us", "latitude": 39.0, "longitude": -77.5, "ingresses": [{"id": 2, "advertise": "198.51.100.10:3478"}]}
//	  ],
//	  "prefixes": {"192.0.2.0/24": "us"}
//	}
//
// The fields are those of geo.Config. An address counts for prefixes if the request
// came from it: behind a proxy, have the proxy say the region.
type places struct {
	Places []struct {
		Region    string  `json:"region"`
		Latitude  float64 `json:"latitude"`
		Longitude float64 `json:"longitude"`
		Ingresses []struct {
			ID        uint16         `json:"id"`
			Advertise netip.AddrPort `json:"advertise"`
		} `json:"ingresses"`
	} `json:"places"`
	Default         string                  `json:"default"`
	Most            int                     `json:"most"`
	RegionHeader    string                  `json:"region_header"`
	Aliases         map[string]string       `json:"aliases"`
	LatitudeHeader  string                  `json:"latitude_header"`
	LongitudeHeader string                  `json:"longitude_header"`
	Prefixes        map[netip.Prefix]string `json:"prefixes"`
}

// readPlaces reads the file of -geo. A field that it does not know is an error.
func readPlaces(path string) (*geo.Steering, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var file places
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&file); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: there is more than one object", path)
	}
	cfg := geo.Config{
		Default: file.Default, Most: file.Most, RegionHeader: file.RegionHeader, Aliases: file.Aliases,
		LatitudeHeader: file.LatitudeHeader, LongitudeHeader: file.LongitudeHeader, Prefixes: file.Prefixes,
	}
	for _, p := range file.Places {
		place := geo.Place{Region: p.Region, At: geo.Coordinates{Latitude: p.Latitude, Longitude: p.Longitude}}
		for _, in := range p.Ingresses {
			place.Ingresses = append(place.Ingresses, transceiver.Ingress{ID: in.ID, Advertise: in.Advertise})
		}
		cfg.Places = append(cfg.Places, place)
	}
	steering, err := geo.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return steering, nil
}
