package deploy

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// overlays are rendered by every test, next to what they are made of.
var overlays = []string{"overlays/region-a", "overlays/region-b", "overlays/edge"}

// objects are those of one overlay, by kind and then by name.
type objects struct {
	settings     map[string]string
	configMaps   map[string]*corev1.ConfigMap
	secrets      map[string]*corev1.Secret
	services     map[string]*corev1.Service
	policies     map[string]*networkingv1.NetworkPolicy
	ingresses    map[string]*networkingv1.Ingress
	disruptions  map[string]*policyv1.PodDisruptionBudget
	monitors     map[string]*monitoringv1.ServiceMonitor
	deployments  map[string]*appsv1.Deployment
	daemonSets   map[string]*appsv1.DaemonSet
	statefulSets map[string]*appsv1.StatefulSet
	namespace    *corev1.Namespace
}

// pods are the pod templates of an overlay, by the name of what makes them.
func (o *objects) pods() map[string]*corev1.PodTemplateSpec {
	m := make(map[string]*corev1.PodTemplateSpec)
	for name, d := range o.deployments {
		m[name] = &d.Spec.Template
	}
	for name, d := range o.daemonSets {
		m[name] = &d.Spec.Template
	}
	for name, d := range o.statefulSets {
		m[name] = &d.Spec.Template
	}
	return m
}

// decoder reads YAML strictly: a field that the API does not have, or has twice, is
// an error, and so is a kind that nobody registered.
func decoder(t *testing.T) runtime.Decoder {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, networkingv1.AddToScheme, policyv1.AddToScheme, monitoringv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true, Strict: true})
}

func render(t *testing.T, dir string) *objects {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	o := &objects{
		configMaps: map[string]*corev1.ConfigMap{}, secrets: map[string]*corev1.Secret{},
		services: map[string]*corev1.Service{}, policies: map[string]*networkingv1.NetworkPolicy{},
		ingresses: map[string]*networkingv1.Ingress{}, disruptions: map[string]*policyv1.PodDisruptionBudget{},
		monitors: map[string]*monitoringv1.ServiceMonitor{}, deployments: map[string]*appsv1.Deployment{},
		daemonSets: map[string]*appsv1.DaemonSet{}, statefulSets: map[string]*appsv1.StatefulSet{},
	}
	d := decoder(t)
	for _, resource := range resources.Resources() {
		text, err := resource.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		object, _, err := d.Decode(text, nil, nil)
		if err != nil {
			t.Errorf("%s: %v", resource.CurId(), err)
			continue
		}
		switch v := object.(type) {
		case *corev1.Namespace:
			o.namespace = v
			continue // in no namespace itself
		case *corev1.ConfigMap:
			o.configMaps[v.Name] = v
			if _, ok := v.Data["INGRESS_ID"]; ok {
				o.settings = v.Data
			}
		case *corev1.Secret:
			o.secrets[v.Name] = v
		case *corev1.Service:
			o.services[v.Name] = v
		case *networkingv1.NetworkPolicy:
			o.policies[v.Name] = v
		case *networkingv1.Ingress:
			o.ingresses[v.Name] = v
		case *policyv1.PodDisruptionBudget:
			o.disruptions[v.Name] = v
		case *monitoringv1.ServiceMonitor:
			o.monitors[v.Name] = v
		case *appsv1.Deployment:
			o.deployments[v.Name] = v
		case *appsv1.DaemonSet:
			o.daemonSets[v.Name] = v
		case *appsv1.StatefulSet:
			o.statefulSets[v.Name] = v
		default:
			t.Errorf("%s: no test looks at it", resource.CurId())
		}
		if ns := resource.GetNamespace(); ns != "usher" {
			t.Errorf("%s is in namespace %q", resource.CurId(), ns)
		}
	}
	if o.namespace == nil || o.settings == nil {
		t.Fatalf("%s: no namespace or no settings", dir)
	}
	return o
}

// each runs a test for every overlay.
func each(t *testing.T, test func(t *testing.T, o *objects)) {
	for _, dir := range overlays {
		t.Run(filepath.Base(dir), func(t *testing.T) { test(t, render(t, dir)) })
	}
}

// TestEverythingIsUsed finds directories that no overlay reaches: nothing would
// render them.
func TestEverythingIsUsed(t *testing.T) {
	reached := map[string]bool{}
	var visit func(dir string)
	visit = func(dir string) {
		if reached[dir] {
			return
		}
		reached[dir] = true
		text, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for _, ref := range references(text) {
			visit(filepath.Join(dir, ref))
		}
	}
	for _, dir := range overlays {
		visit(dir)
	}
	found, err := filepath.Glob("*/*/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		t.Fatal("no kustomization is found")
	}
	for _, file := range found {
		if dir := filepath.Dir(file); !reached[dir] {
			t.Errorf("no overlay uses %s", dir)
		}
	}
}

// TestStrict breaks a manifest: the decoder must notice what kubectl would accept
// in silence.
func TestStrict(t *testing.T) {
	d := decoder(t)
	for _, text := range []string{
		"apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {externalTrafficPolcy: Local}\n",
		"apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {type: A, type: B}\n",
		"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\nspec: {replicas: three}\n",
		"apiVersion: monitoring.coreos.com/v1\nkind: ServiceMonitor\nmetadata: {name: x}\nspec: {endpoint: []}\n",
		"apiVersion: example.com/v1\nkind: Other\nmetadata: {name: x}\n",
	} {
		if _, _, err := d.Decode([]byte(text), nil, nil); err == nil {
			t.Errorf("accepted:\n%s", text)
		}
	}
}

// TestNumbersOfRegionsDiffer: cluster and ingress numbers are what ufrags and frames
// tell regions apart by, and the edge's directory has to list every cluster.
func TestNumbersOfRegionsDiffer(t *testing.T) {
	seen := map[string][]string{}
	var clusters []string
	for _, dir := range overlays {
		o := render(t, dir)
		keys := []string{"INGRESS_ID", "VIP"}
		if len(o.deployments) > 0 {
			keys = append(keys, "CLUSTER")
			clusters = append(clusters, o.settings["CLUSTER"])
		}
		for _, key := range keys {
			value := o.settings[key]
			if value == "" || slices.Contains(seen[key], value) {
				t.Errorf("%s: %s=%q is missing or another overlay's", dir, key, value)
			}
			seen[key] = append(seen[key], value)
		}
		if vip, err := netip.ParseAddrPort(o.settings["VIP"]); err != nil || vip.Port() != 3478 {
			t.Errorf("%s: VIP %q: %v", dir, o.settings["VIP"], err)
		}
		if id := o.settings["EDGE_INGRESS_ID"]; id != "" && id != render(t, "overlays/edge").settings["INGRESS_ID"] {
			t.Errorf("%s: the edge's ingress is not %s", dir, id)
		}
	}
	listed := clusterNumbers(t, render(t, "overlays/edge").configMaps["usher-clusters"].Data["clusters.txt"])
	slices.Sort(clusters)
	if !slices.Equal(listed, clusters) {
		t.Errorf("the edge leads to clusters %v, there are %v", listed, clusters)
	}
}
