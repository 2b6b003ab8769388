// Says of each file whether a Kubernetes would take what is in it: by the API server's own reading, defaults and rules,
// and in its own words. A field that it does not know is an error, and so is a pod that may do more than the security
// standard "restricted" lets it. Exit status 1: it would not.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/apps"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	appsrules "k8s.io/kubernetes/pkg/apis/apps/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	corerules "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/networking"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	networkingrules "k8s.io/kubernetes/pkg/apis/networking/validation"
	"k8s.io/kubernetes/pkg/apis/policy"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	policyrules "k8s.io/kubernetes/pkg/apis/policy/validation"
	"k8s.io/pod-security-admission/api"
	pods "k8s.io/pod-security-admission/policy"
)

func judge(object runtime.Object) (string, field.ErrorList) {
	switch o := object.(type) {
	case *apps.Deployment:
		o.Namespace = "default"
		return "Deployment " + o.Name, appsrules.ValidateDeployment(o, corerules.PodValidationOptions{})
	case *apps.StatefulSet:
		o.Namespace = "default"
		return "StatefulSet " + o.Name, appsrules.ValidateStatefulSet(o, corerules.PodValidationOptions{})
	case *core.ConfigMap:
		o.Namespace = "default"
		return "ConfigMap " + o.Name, corerules.ValidateConfigMap(o)
	case *core.Secret:
		o.Namespace = "default"
		return "Secret " + o.Name, corerules.ValidateSecret(o)
	case *core.Service:
		o.Namespace = "default"
		return "Service " + o.Name, corerules.ValidateServiceCreate(o)
	case *networking.NetworkPolicy:
		o.Namespace = "default"
		return "NetworkPolicy " + o.Name,
			networkingrules.ValidateNetworkPolicy(o, networkingrules.NetworkPolicyValidationOptions{})
	case *networking.Ingress:
		o.Namespace = "default"
		return "Ingress " + o.Name, networkingrules.ValidateIngressCreate(o)
	case *policy.PodDisruptionBudget:
		o.Namespace = "default"
		return "PodDisruptionBudget " + o.Name,
			policyrules.ValidatePodDisruptionBudget(o, policyrules.PodDisruptionBudgetValidationOptions{})
	}
	return "", field.ErrorList{field.InternalError(nil, fmt.Errorf("%T is not known to this check", object))}
}

// What a pod may do that "restricted" forbids; nil: nothing, or there is no pod.
func rights(object runtime.Object) error {
	var pod corev1.PodTemplateSpec
	switch o := object.(type) {
	case *appsv1.Deployment:
		pod = o.Spec.Template
	case *appsv1.StatefulSet:
		pod = o.Spec.Template
	default:
		return nil
	}
	judge, err := pods.NewEvaluator(pods.DefaultChecks())
	if err != nil {
		return err
	}
	restricted := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	said := pods.AggregateCheckResults(judge.EvaluatePod(restricted, &pod.ObjectMeta, &pod.Spec))
	if !said.Allowed {
		return errors.New("restricted: " + said.ForbiddenDetail())
	}
	return nil
}

func check(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	scheme := legacyscheme.Scheme
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme,
		json.SerializerOptions{Yaml: true, Strict: true})
	documents := yaml.NewYAMLReader(bufio.NewReader(file))
	for {
		document, err := documents.Read()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		object, _, err := strict.Decode(document, nil, nil)
		if err != nil {
			return err
		}
		if err := rights(object); err != nil {
			return err
		}
		scheme.Default(object)
		inside, err := scheme.ConvertToVersion(object, runtime.InternalGroupVersioner)
		if err != nil {
			return err
		}
		name, faults := judge(inside)
		if len(faults) > 0 {
			return errors.Join(fmt.Errorf("%s:", name), faults.ToAggregate())
		}
		fmt.Printf("%s: %s\n", path, name)
	}
}

func main() {
	status := 0
	for _, path := range os.Args[1:] {
		if err := check(path); err != nil {
			fmt.Printf("%s: %v\n", path, err)
			status = 1
		}
	}
	os.Exit(status)
}
