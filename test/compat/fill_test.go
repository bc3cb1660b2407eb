package compat

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
)

// filler sets every field that reflection reaches to a different nonzero value.
type filler struct {
	t *testing.T
	n int
}

func (f *filler) next() int { f.n++; return f.n }

func (f *filler) fill(v reflect.Value, path string) {
	if f.leaf(v) {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem(), path)
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Type().Field(i)
			if field.Type == reflect.TypeFor[metav1.ObjectMeta]() || field.Type == reflect.TypeFor[metav1.TypeMeta]() {
				continue // not Varve's types; set by the caller
			}
			f.fill(v.Field(i), path+"."+field.Name)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		f.fill(v.Index(0), path+"[]")
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		f.fill(key, path+"{key}")
		f.fill(value, path+"{}")
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString(fmt.Sprintf("s%d", f.next()))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(int64(f.next()))
	case reflect.Uint, reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(f.next()))
	default:
		f.t.Fatalf("%s: cannot fill a %s", path, v.Type())
	}
}

// leaf sets types whose JSON differs from their fields.
func (f *filler) leaf(v reflect.Value) bool {
	switch value := v.Addr().Interface().(type) {
	case *metav1.Time:
		*value = metav1.NewTime(time.Unix(1_700_000_000+int64(f.next()), 0))
	case *runtime.RawExtension:
		value.Raw = fmt.Appendf(nil, `{"metadata":{"name":"vm-%d"}}`, f.next())
	case *velerov1.Duration:
		value.Duration = time.Duration(f.next()) * time.Second
	case *resource.Quantity:
		*value = resource.MustParse(fmt.Sprintf("%dMi", f.next()))
	case *intstr.IntOrString:
		*value = intstr.FromInt32(int32(f.next())) //nolint:gosec // a small counter
	default:
		return false
	}
	return true
}

// full returns a new T with every field set.
func full[T any](t *testing.T) *T {
	t.Helper()
	o := new(T)
	f := &filler{t: t}
	f.fill(reflect.ValueOf(o).Elem(), reflect.TypeFor[T]().Name())
	return o
}

// zeroFields returns the paths that are zero in a filled value. With any, the comparison would prove nothing.
func zeroFields(v reflect.Value, path string) []string {
	if v.Type() == reflect.TypeFor[metav1.Time]() || v.Type() == reflect.TypeFor[velerov1.Duration]() || v.Type() == reflect.TypeFor[resource.Quantity]() {
		return nil
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return []string{path}
		}
		return zeroFields(v.Elem(), path)
	case reflect.Struct:
		var zero []string
		for i := range v.NumField() {
			if name := v.Type().Field(i).Name; name != "TypeMeta" && name != "ObjectMeta" {
				zero = append(zero, zeroFields(v.Field(i), path+"."+name)...)
			}
		}
		return zero
	case reflect.Slice:
		if v.Len() == 0 {
			return []string{path}
		}
		return zeroFields(v.Index(0), path+"[]")
	default:
		if v.IsZero() {
			return []string{path}
		}
		return nil
	}
}

func jsonNames(t reflect.Type) []string {
	var names []string
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}
