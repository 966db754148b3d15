// Package peers starts the relays that the harness compares and speaks their
// formats: usher's relay, nginx's stream proxy, coturn, pion/turn, a naive Go
// forwarder and one in C. Each is started with the settings that favour it,
// on the same processor, and does the same job: packets of many clients go to
// one upstream address and answers go back to the clients.
//
// It owns no measurement. The processes it starts listen on loopback only.
package peers
