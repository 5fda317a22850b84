package result

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
)

// Write writes the run to path (a run folder or the file itself) so that a
// reader, or a crash at any moment, sees either the former run or this one:
// a temporary file beside it, fsync, rename, fsync of the folder. A run that is
// not valid is not written. The folder must exist.
func Write(path string, run *Run) error {
	data, err := Encode(run)
	if err != nil {
		return err
	}
	file := File(path)
	if err := replace(file, data); err != nil {
		return fmt.Errorf("write the run to %s: %w", file, err)
	}
	return nil
}

func replace(file string, data []byte) (err error) {
	dir := filepath.Dir(file)
	tmp, err := os.CreateTemp(dir, "."+filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, ignoreMissing(os.Remove(tmp.Name())))
		}
	}()
	_, err = tmp.Write(data)
	if err == nil {
		err = tmp.Chmod(0o644)
	}
	if err == nil {
		err = tmp.Sync()
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), file); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Encode returns the bytes of the run.json: fields in the order of the schema,
// keys of maps sorted, every cell on a line of its own, so that two runs can be
// compared by line and one cell taken out with grep.
func Encode(run *Run) ([]byte, error) {
	if run == nil {
		return nil, errors.New("encode the run: there is none")
	}
	if err := Validate(run); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.WriteString("{")
	v := reflect.ValueOf(run).Elem()
	first := true
	for i := range v.NumField() {
		name, options, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		field := v.Field(i)
		if name == "" || name == "-" || strings.Contains(options, "omitempty") && isEmpty(field) {
			continue
		}
		if !first {
			out.WriteString(",")
		}
		first = false
		fmt.Fprintf(&out, "\n %q: ", name)
		if err := encodeField(&out, field); err != nil {
			return nil, fmt.Errorf("encode %s of the run: %w", name, err)
		}
	}
	out.WriteString("\n}\n")
	return out.Bytes(), nil
}

// isEmpty is what omitempty means: no length, or the zero of a scalar.
func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len() == 0
	default:
		return v.IsZero()
	}
}

// encodeField writes a list with one element a line, and anything else as it is.
func encodeField(out *bytes.Buffer, v reflect.Value) error {
	if v.Kind() != reflect.Slice {
		return encodeValue(out, v.Interface())
	}
	out.WriteString("[")
	for i := range v.Len() {
		if i > 0 {
			out.WriteString(",")
		}
		out.WriteString("\n  ")
		if err := encodeValue(out, v.Index(i).Interface()); err != nil {
			return err
		}
	}
	if v.Len() > 0 {
		out.WriteString("\n ")
	}
	out.WriteString("]")
	return nil
}

func encodeValue(out *bytes.Buffer, value any) error {
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false) // commands hold && and <; the report escapes for itself
	if err := enc.Encode(value); err != nil {
		return err
	}
	out.Truncate(out.Len() - 1) // the encoder's newline
	return nil
}
