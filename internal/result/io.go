package result

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
)

// FileName is the name of the result within a run folder.
const FileName = "run.json"

// MaxBytes bounds what Read accepts: a file beyond it is not one of ours.
const MaxBytes = 512 << 20

// SchemaError says that a run was written by a newer holdfast.
type SchemaError struct {
	Path      string // "" when read from memory
	Schema    int
	Supported int
}

func (e *SchemaError) Error() string {
	return fmt.Sprintf("%s has schema %d, this holdfast reads up to %d: use a newer holdfast",
		nameOr(e.Path), e.Schema, e.Supported)
}

// FormatError says where a run.json stops making sense.
type FormatError struct {
	Path      string
	Offset    int64 // bytes from the start
	Line      int   // from 1
	Column    int   // in bytes, from 1
	Truncated bool  // the file ends too early: an interrupted copy or a full disk
	Problem   string
}

func (e *FormatError) Error() string {
	if e.Truncated {
		return fmt.Sprintf("%s is truncated: it ends at byte %d (line %d) inside a value; restore it, or run the study again",
			nameOr(e.Path), e.Offset, e.Line)
	}
	return fmt.Sprintf("%s, byte %d (line %d, column %d): %s", nameOr(e.Path), e.Offset, e.Line, e.Column, e.Problem)
}

func nameOr(path string) string {
	if path == "" {
		return FileName
	}
	return path
}

// File returns the path of the run.json that path means: a run folder or the
// file itself. A path that does not exist yet is a folder unless it ends in ".json".
func File(path string) string {
	if info, err := os.Stat(path); err == nil {
		if info.IsDir() {
			return filepath.Join(path, FileName)
		}
		return path
	}
	if strings.HasSuffix(path, ".json") {
		return path
	}
	return filepath.Join(path, FileName)
}

// Read reads a run from its folder or from the file itself. Errors are
// *SchemaError for a newer schema, *FormatError for what is not valid JSON or
// has a wrong type, *ValidationError for impossible contents, and those of
// opening the file.
func Read(path string) (*Run, error) {
	file := File(path)
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) && file != path {
		return nil, fmt.Errorf("%s holds no %s, so it is not the folder of a run: %w", path, FileName, fs.ErrNotExist)
	}
	if err != nil {
		return nil, fmt.Errorf("open the run: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read the run: %w", err)
	}
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("read the run: %s is over %d MiB, no run is that large", file, MaxBytes>>20)
	}
	run, err := Decode(data)
	return run, withPath(err, file)
}

// withPath puts the file's name into the errors of Decode.
func withPath(err error, file string) error {
	var se *SchemaError
	var fe *FormatError
	var ve *ValidationError
	switch {
	case errors.As(err, &se):
		se.Path = file
	case errors.As(err, &fe):
		fe.Path = file
	case errors.As(err, &ve):
		ve.Path = file
	}
	return err
}

// Decode reads a run from the bytes of a run.json. Fields that it does not know
// are ignored: a schema may gain fields without becoming another one.
func Decode(data []byte) (*Run, error) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, formatError(data, 0, "the file is empty; the run did not get as far as its first result")
	}
	// The schema comes first: the rest of a newer one may well not fit our types.
	var head struct {
		Schema *int `json:"schema"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, explain(data, err)
	}
	switch {
	case head.Schema == nil:
		return nil, formatError(data, 0, `there is no "schema": this is not the result of a run`)
	case *head.Schema > Schema:
		return nil, &SchemaError{Schema: *head.Schema, Supported: Schema}
	case *head.Schema < 1:
		return nil, formatError(data, 0, fmt.Sprintf("schema %d never existed", *head.Schema))
	}
	var run Run
	if err := json.Unmarshal(data, &run); err != nil {
		return nil, explain(data, err)
	}
	if err := rejectNulls(data); err != nil {
		return nil, err
	}
	if err := Validate(&run); err != nil {
		return nil, err
	}
	return &run, nil
}

// rejectNulls finds metrics that are null. The decoder would turn them into 0,
// and a zero that nobody measured is the one thing this file must not hold.
func rejectNulls(data []byte) error {
	type nullable struct {
		Metrics map[string]*float64 `json:"metrics"`
	}
	var doc struct {
		Cells   []nullable `json:"cells"`
		Summary []nullable `json:"summary"`
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		return explain(data, err)
	}
	for list, entries := range map[string][]nullable{"cells": doc.Cells, "summary": doc.Summary} {
		for i, e := range entries {
			for _, name := range sortedKeys(e.Metrics) {
				if e.Metrics[name] == nil {
					return &ValidationError{Where: fmt.Sprintf("%s[%d].metrics.%s", list, i, name),
						Problem: "is null: what was not measured must be absent"}
				}
			}
		}
	}
	return nil
}

// explain turns a decoder's error into one that says where and what.
func explain(data []byte, err error) error {
	var syntax *json.SyntaxError
	var typ *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax) && endsEarly(data, syntax):
		fe := formatError(data, int64(len(data)), "")
		fe.Truncated = true
		return fe
	case errors.As(err, &syntax):
		return formatError(data, syntax.Offset-1, "this is not JSON: "+syntax.Error())
	case errors.As(err, &typ):
		what := "a " + typ.Value + " does not belong here"
		if typ.Field != "" {
			what = fmt.Sprintf("%q is a %s where %s belongs", typ.Field, typ.Value, describe(typ.Type))
		}
		return formatError(data, typ.Offset-1, what)
	default:
		return formatError(data, 0, err.Error())
	}
}

// endsEarly tells a value that stops from one that is wrong. In the middle of a
// literal or a number the decoder complains of a space that is not in the file.
func endsEarly(data []byte, syntax *json.SyntaxError) bool {
	msg := syntax.Error()
	return strings.Contains(msg, "unexpected end") || syntax.Offset >= int64(len(data)) &&
		strings.Contains(msg, "invalid character ' '") && !bytes.HasSuffix(data, []byte(" "))
}

// describe names a Go type in JSON's words.
func describe(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Map, reflect.Struct, reflect.Pointer:
		return "an object"
	case reflect.Uint, reflect.Uint64, reflect.Uint32:
		return "a whole number of at least 0"
	case reflect.Int, reflect.Int64, reflect.Int32:
		return "a whole number"
	default:
		return "a number"
	}
}

func formatError(data []byte, offset int64, problem string) *FormatError {
	offset = min(max(offset, 0), int64(len(data)))
	before := data[:offset]
	return &FormatError{
		Offset:  offset,
		Line:    bytes.Count(before, []byte("\n")) + 1,
		Column:  int(offset) - bytes.LastIndexByte(before, '\n'),
		Problem: problem,
	}
}
