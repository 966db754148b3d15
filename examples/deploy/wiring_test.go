package deploy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/usher-rtc/usher/cluster"
	"github.com/usher-rtc/usher/ufrag"
)

// references are the directories that a kustomization names.
func references(text []byte) []string {
	var k struct {
		Resources  []string `yaml:"resources"`
		Components []string `yaml:"components"`
	}
	if err := yaml.Unmarshal(text, &k); err != nil {
		return []string{err.Error()}
	}
	return slices.DeleteFunc(append(k.Resources, k.Components...), func(s string) bool { return strings.HasSuffix(s, ".yaml") })
}

// clusterNumbers are the clusters of an edge's directory.
func clusterNumbers(t *testing.T, text string) []string {
	t.Helper()
	table, err := cluster.ParseFile([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for id := range table {
		list = append(list, strconv.Itoa(int(id)))
	}
	slices.Sort(list)
	return list
}

func selects(t *testing.T, selector *metav1.LabelSelector, have map[string]string) bool {
	t.Helper()
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		t.Fatal(err)
	}
	return s.Matches(labels.Set(have))
}

// TestSecretsAreForTheirPodAlone: relayd and transceiverd warn about a key file
// that all users can read, which is how Kubernetes mounts secrets by default.
func TestSecretsAreForTheirPodAlone(t *testing.T) {
	each(t, func(t *testing.T, o *objects) {
		for name, pod := range o.pods() {
			if c := pod.Spec.SecurityContext; c.FSGroup == nil || c.RunAsGroup == nil || *c.FSGroup != *c.RunAsGroup {
				t.Errorf("%s: fsGroup is not the group that it runs as", name)
			}
			for _, v := range pod.Spec.Volumes {
				if s := v.Secret; s != nil && (s.DefaultMode == nil || *s.DefaultMode != 0o440) {
					t.Errorf("%s: defaultMode of secret %s is not 0440", name, s.SecretName)
				}
			}
		}
	})
}

// TestReferences follows every name that one object uses for another.
func TestReferences(t *testing.T) {
	each(t, func(t *testing.T, o *objects) {
		for name, pod := range o.pods() {
			volumes := map[string]bool{}
			for _, v := range pod.Spec.Volumes {
				volumes[v.Name] = true
				switch {
				case v.Secret != nil:
					secret := o.secrets[v.Secret.SecretName]
					if secret == nil {
						t.Errorf("%s: no Secret %s", name, v.Secret.SecretName)
						continue
					}
					for _, item := range v.Secret.Items {
						if _, ok := secret.Data[item.Key]; !ok {
							t.Errorf("%s: Secret %s has no %s", name, secret.Name, item.Key)
						}
					}
				case v.ConfigMap != nil:
					if o.configMaps[v.ConfigMap.Name] == nil {
						t.Errorf("%s: no ConfigMap %s", name, v.ConfigMap.Name)
					}
				}
			}
			for _, c := range pod.Spec.Containers {
				for _, m := range c.VolumeMounts {
					if !volumes[m.Name] {
						t.Errorf("%s: no volume %s", name, m.Name)
					}
				}
				for _, e := range c.EnvFrom {
					if o.configMaps[e.ConfigMapRef.Name] == nil {
						t.Errorf("%s: no ConfigMap %s", name, e.ConfigMapRef.Name)
					}
				}
				for what, probe := range map[string]*corev1.Probe{"readiness": c.ReadinessProbe, "liveness": c.LivenessProbe} {
					if probe == nil {
						t.Errorf("%s: no %s probe", name, what)
						continue
					}
					port := intstr.IntOrString{}
					if probe.HTTPGet != nil {
						port = probe.HTTPGet.Port
					} else if probe.TCPSocket != nil {
						port = probe.TCPSocket.Port
					}
					if !hasPort(pod, port, corev1.ProtocolTCP) {
						t.Errorf("%s: the %s probe asks port %q", name, what, port.String())
					}
				}
			}
		}
		for name, service := range o.services {
			pod := podOf(o, service.Spec.Selector)
			if pod == nil {
				t.Errorf("Service %s selects no pod", name)
				continue
			}
			for _, p := range service.Spec.Ports {
				if !hasPort(pod, p.TargetPort, p.Protocol) {
					t.Errorf("Service %s: no port %s", name, p.TargetPort.String())
				}
			}
		}
		for name, monitor := range o.monitors {
			found := false
			for _, service := range o.services {
				if !selects(t, &monitor.Spec.Selector, service.Labels) {
					continue
				}
				for _, e := range monitor.Spec.Endpoints {
					found = found || slices.ContainsFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == e.Port })
				}
			}
			if !found {
				t.Errorf("ServiceMonitor %s finds no port of a Service", name)
			}
		}
		for name, budget := range o.disruptions {
			if podMatching(t, o, budget.Spec.Selector) == nil {
				t.Errorf("PodDisruptionBudget %s selects no pod", name)
			}
		}
		for name, ingress := range o.ingresses {
			for _, path := range ingress.Spec.Rules[0].HTTP.Paths {
				service := o.services[path.Backend.Service.Name]
				if service == nil || !slices.ContainsFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == path.Backend.Service.Port.Name }) {
					t.Errorf("Ingress %s: %s leads nowhere", name, path.Path)
				}
				if path.Path != "/v1/realtime/calls" && path.Path != "/whip" {
					t.Errorf("Ingress %s makes %s public", name, path.Path)
				}
			}
		}
		for name, d := range o.deployments {
			if !selects(t, d.Spec.Selector, d.Spec.Template.Labels) {
				t.Errorf("Deployment %s does not select its pods", name)
			}
		}
		for name, d := range o.daemonSets {
			if !selects(t, d.Spec.Selector, d.Spec.Template.Labels) {
				t.Errorf("DaemonSet %s does not select its pods", name)
			}
		}
	})
}

func podOf(o *objects, selector map[string]string) *corev1.PodTemplateSpec {
	for _, pod := range o.pods() {
		if labels.SelectorFromSet(selector).Matches(labels.Set(pod.Labels)) {
			return pod
		}
	}
	return nil
}

func podMatching(t *testing.T, o *objects, selector *metav1.LabelSelector) *corev1.PodTemplateSpec {
	for _, pod := range o.pods() {
		if selects(t, selector, pod.Labels) {
			return pod
		}
	}
	return nil
}

func hasPort(pod *corev1.PodTemplateSpec, port intstr.IntOrString, protocol corev1.Protocol) bool {
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if p.Protocol == protocol && (p.Name == port.StrVal || p.ContainerPort == port.IntVal) {
				return true
			}
		}
	}
	return false
}

// TestPodsAreRestricted: no root, nothing writable, no capability but the one that
// components/socket-buffers asks for, with the image that can use it.
func TestPodsAreRestricted(t *testing.T) {
	each(t, func(t *testing.T, o *objects) {
		level := o.namespace.Labels["pod-security.kubernetes.io/enforce"]
		for name, pod := range o.pods() {
			spec := pod.Spec
			if spec.HostNetwork && level != "privileged" {
				t.Errorf("%s: the namespace is %s and forbids the host's network", name, level)
			}
			if spec.HostNetwork && spec.DNSPolicy != corev1.DNSClusterFirstWithHostNet {
				t.Errorf("%s: dnsPolicy %s", name, spec.DNSPolicy)
			}
			if s := spec.SecurityContext; s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || *s.RunAsUser == 0 ||
				s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
				t.Errorf("%s may run as root or without seccomp", name)
			}
			if spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken {
				t.Errorf("%s gets a token that it does not need", name)
			}
			for _, c := range spec.Containers {
				s := c.SecurityContext
				if !*s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
					t.Errorf("%s: file system %t, capabilities dropped %v", name, *s.ReadOnlyRootFilesystem, s.Capabilities.Drop)
				}
				asked := strings.Contains(c.Image, "/relayd-netadmin:")
				var want []corev1.Capability
				if asked {
					want = []corev1.Capability{"NET_ADMIN"}
				}
				if !slices.Equal(s.Capabilities.Add, want) || *s.AllowPrivilegeEscalation != asked {
					t.Errorf("%s: image %s, capabilities %v, escalation %t", name, c.Image, s.Capabilities.Add, *s.AllowPrivilegeEscalation)
				}
				if _, limited := c.Resources.Limits[corev1.ResourceCPU]; limited {
					t.Errorf("%s: a limit on the processor makes gaps", name)
				}
				if _, limited := c.Resources.Limits[corev1.ResourceMemory]; !limited {
					t.Errorf("%s: no limit on memory", name)
				}
			}
		}
	})
	if o := render(t, "overlays/region-a"); len(o.daemonSets["relay-node"].Spec.Template.Spec.Containers[0].SecurityContext.Capabilities.Add) > 0 {
		t.Error("region A did not ask for capabilities")
	}
	if o := render(t, "overlays/region-b"); len(o.daemonSets["relay-node"].Spec.Template.Spec.Containers[0].SecurityContext.Capabilities.Add) == 0 {
		t.Error("region B asked for a capability")
	}
}

// TestWhoReachesWhat plays the NetworkPolicies: only relays reach the transceivers'
// trunk and Redis, and only transceivers the relays' trunk. Relays on nodes have
// the addresses that the settings name.
func TestWhoReachesWhat(t *testing.T) {
	each(t, func(t *testing.T, o *objects) {
		for name, pod := range o.pods() {
			if pod.Spec.HostNetwork {
				continue // no policy applies
			}
			limited := false
			for _, p := range o.policies {
				if !selects(t, &p.Spec.PodSelector, pod.Labels) {
					continue
				}
				limited = limited || slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeIngress)
				for _, rule := range p.Spec.Ingress {
					checkRule(t, o, pod, p.Name, rule)
				}
			}
			if !limited {
				t.Errorf("no policy limits who reaches %s", name)
			}
		}
	})
}

func checkRule(t *testing.T, o *objects, pod *corev1.PodTemplateSpec, policy string, rule networkingv1.NetworkPolicyIngressRule) {
	t.Helper()
	if len(rule.Ports) == 0 {
		t.Errorf("%s opens every port", policy)
	}
	for _, port := range rule.Ports {
		if !hasPort(pod, *port.Port, *port.Protocol) {
			t.Errorf("%s: nobody listens on %s", policy, port.Port.String())
		}
		var only string
		switch {
		case port.Port.IntVal == 3478:
			continue // for everybody
		case port.Port.IntVal == 4000:
			only = "usher-transceiver"
			workers, _ := strconv.Atoi(argument(pod, "workers"))
			if port.EndPort == nil || int(*port.EndPort) != 4000+workers-1 {
				t.Errorf("%s: the trunk ports of %d workers do not end at %v", policy, workers, port.EndPort)
			}
		case port.Port.IntVal == 9000, port.Port.IntVal == 6379:
			only = "usher-relay"
		}
		if len(rule.From) == 0 {
			t.Errorf("%s: port %s is open to everybody", policy, port.Port.String())
		}
		for _, from := range rule.From {
			switch {
			case from.IPBlock != nil:
				if only != "usher-relay" || o.daemonSets["relay-node"] == nil || !slices.Contains(strings.Split(o.settings["RELAY_NETWORKS"], ","), from.IPBlock.CIDR) {
					t.Errorf("%s: %s reaches port %s", policy, from.IPBlock.CIDR, port.Port.String())
				}
			case from.NamespaceSelector != nil:
				if only != "" {
					t.Errorf("%s: a whole namespace reaches port %s", policy, port.Port.String())
				}
			default:
				if only == "" || from.PodSelector.MatchLabels["app.kubernetes.io/name"] != only {
					t.Errorf("%s: %v reaches port %s", policy, from.PodSelector, port.Port.String())
				}
			}
		}
	}
}

// argument is the value of a flag that a pod's first container is given.
func argument(pod *corev1.PodTemplateSpec, name string) string {
	for _, a := range pod.Spec.Containers[0].Args {
		if flag, value, _ := strings.Cut(strings.TrimLeft(a, "-"), "="); flag == name {
			return value
		}
	}
	return ""
}

// TestBalancer: the public Service must not hide clients' addresses, nor a headless
// one the pods that drain.
func TestBalancer(t *testing.T) {
	public := 0
	each(t, func(t *testing.T, o *objects) {
		for name, s := range o.services {
			if s.Spec.ClusterIP == corev1.ClusterIPNone && name != "redis" && !s.Spec.PublishNotReadyAddresses {
				t.Errorf("Service %s hides pods that drain", name)
			}
			if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
				continue
			}
			public++
			if s.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
				t.Errorf("Service %s: externalTrafficPolicy %s", name, s.Spec.ExternalTrafficPolicy)
			}
			for _, p := range s.Spec.Ports {
				if p.Protocol != corev1.ProtocolUDP || fmt.Sprint(p.Port) != o.settings["VIP"][strings.LastIndex(o.settings["VIP"], ":")+1:] {
					t.Errorf("Service %s: port %d/%s is not that of %s", name, p.Port, p.Protocol, o.settings["VIP"])
				}
			}
		}
		if s := o.services["transceiver-pods"]; len(o.deployments) > 0 && (s == nil || !s.Spec.PublishNotReadyAddresses) {
			t.Error("transceivers that drain are not published")
		}
	})
	if public == 0 {
		t.Error("no overlay has a balancer")
	}
}

// TestShippedKeysAreNoKeys: nobody shall run with keys that everybody has. The
// edges, besides, hold no key of the links inside the clusters.
func TestShippedKeysAreNoKeys(t *testing.T) {
	each(t, func(t *testing.T, o *objects) {
		found := 0
		for name, s := range o.secrets {
			if text, ok := s.Data["keys"]; ok {
				found++
				if _, keys, err := ufrag.ParseKeyFile(text); err == nil {
					t.Errorf("Secret %s is shipped with %d keys", name, len(keys))
				}
			}
		}
		if found == 0 {
			t.Errorf("no keys among %v", slices.Collect(maps.Keys(o.secrets)))
		}
		if _, ok := o.secrets["usher-trunk-keys"]; ok != (len(o.deployments) > 0) {
			t.Errorf("trunk keys: %t", ok)
		}
	})
}

// TestGracePeriods: Kubernetes must not kill what still drains, and a transceiver
// goes on answering offers for a moment after it has been told to leave.
func TestGracePeriods(t *testing.T) {
	each(t, func(t *testing.T, o *objects) {
		for name, pod := range o.pods() {
			drain, err := time.ParseDuration(argument(pod, "drain"))
			if err != nil {
				if name == "redis" {
					continue
				}
				t.Fatalf("%s: %v", name, err)
			}
			if hook := pod.Spec.Containers[0].Lifecycle; hook != nil {
				drain += time.Duration(hook.PreStop.Sleep.Seconds) * time.Second
			} else if name == "transceiver" {
				t.Error("transceivers leave before their proxies know")
			}
			grace := time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second
			if grace < drain+5*time.Second {
				t.Errorf("%s drains for %v and is killed after %v", name, drain, grace)
			}
		}
	})
}
