package wire

import (
	"encoding"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"
)

// newRand returns a source whose seed the test prints.
func newRand(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// fill sets v to a random value of its type. Slices are nil or not empty: msgpack
// tells nil from empty, but no message gives that a meaning.
func fill(r *rand.Rand, v reflect.Value) {
	if v.Type() == reflect.TypeFor[time.Time]() {
		if r.IntN(4) > 0 {
			v.Set(reflect.ValueOf(time.Unix(r.Int64N(1<<40)-1<<39, r.Int64N(1e9)).UTC()))
		}
		return
	}
	if b, ok := v.Addr().Interface().(encoding.BinaryUnmarshaler); ok {
		if err := b.UnmarshalBinary([]byte("any"[:r.IntN(4)])); err != nil {
			panic(err)
		}
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Int:
		v.SetInt(int64(r.Uint64()) >> r.IntN(64) << (64 - v.Type().Bits()) >> (64 - v.Type().Bits()))
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uint:
		v.SetUint(r.Uint64() >> r.IntN(64) & (1<<v.Type().Bits() - 1))
	case reflect.Float64, reflect.Float32:
		v.SetFloat(float64(r.Float32()))
	case reflect.String:
		v.SetString("né"[:r.IntN(2)] + string(rune('a'+r.IntN(26))))
	case reflect.Pointer:
		if r.IntN(2) == 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(r, v.Elem())
		}
	case reflect.Slice:
		if n := r.IntN(5); n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
		}
		for i := range v.Len() {
			fill(r, v.Index(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(r, v.Index(i))
		}
	case reflect.Map:
		if n := r.IntN(4); n > 0 {
			v.Set(reflect.MakeMap(v.Type()))
			for range n {
				key, elem := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
				fill(r, key)
				fill(r, elem)
				v.SetMapIndex(key, elem)
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fill(r, v.Field(i))
		}
	default:
		panic("a message may not hold a " + v.Type().String())
	}
}
