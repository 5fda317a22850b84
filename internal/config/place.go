package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// source is the text that a study or configuration was read from.
type source struct {
	name string
	file *ast.File
}

// strict decodes the one document in data into v, and keeps its source.
func strict(file string, data []byte, v any, empty string) (_ *source, err error) {
	// The parser of YAML panics over some tags and aliases that make no sense.
	defer func() {
		if recover() != nil {
			err = fmt.Errorf("%s: this cannot be read as YAML; a stray alias (*), anchor (&) or tag (!) would explain it", file)
		}
	}()
	dec := yaml.NewDecoder(bytes.NewReader(data), yaml.Strict())
	if err := dec.Decode(v); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%s: %s", file, empty)
		}
		return nil, fmt.Errorf("%s: %s", file, strings.TrimSpace(yaml.FormatError(err, false, true)))
	}
	var extra any
	if err := dec.Decode(&extra); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: more than one YAML document; there is one in a file", file)
	}
	return parseSource(file, data)
}

func parseSource(name string, data []byte) (*source, error) {
	f, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %s", name, strings.TrimSpace(yaml.FormatError(err, false, true)))
	}
	return &source{name: name, file: f}, nil
}

// wrong is an error about the value at a path, such as experiments[1].repeat;
// an empty path is the whole study.
type wrong struct {
	path string
	err  error
}

func (w wrong) Error() string { return w.err.Error() }
func (w wrong) Unwrap() error { return w.err }

func at(path string, err error) error {
	if err == nil {
		return nil
	}
	if w, ok := errors.AsType[wrong](err); ok {
		if path != "" && w.path != "" {
			path += "."
		}
		return wrong{path + w.path, w.err}
	}
	return wrong{path, err}
}

// At says where in the study's file an error lies: its line and column and the
// lines around it. What the file leaves out is shown where it would stand.
func (s *Study) At(path string, err error) error {
	if err == nil {
		return nil
	}
	if s.source == nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return s.source.place(at(path, err))
}

func (src *source) place(err error) error {
	w, ok := errors.AsType[wrong](err)
	if !ok || w.path == "" {
		return fmt.Errorf("%s: %w", src.name, err)
	}
	for path := w.path; path != ""; path = parent(path) {
		if tk := src.token(path); tk != nil {
			said := &yaml.SyntaxError{Message: w.path + ": " + w.err.Error(), Token: tk}
			return placed{src.name + ": " + strings.TrimSpace(yaml.FormatError(said, false, true)), w.err}
		}
	}
	return fmt.Errorf("%s: %s: %w", src.name, w.path, w.err)
}

// placed is an error that says its place.
type placed struct {
	text string
	err  error
}

func (p placed) Error() string { return p.text }
func (p placed) Unwrap() error { return p.err }

// parent cuts the last part of a path off.
func parent(path string) string {
	return path[:max(strings.LastIndexAny(path, ".["), 0)]
}

func (src *source) token(path string) *token.Token {
	p, err := yaml.PathString("$." + path)
	if err != nil {
		return nil
	}
	n, err := p.FilterFile(src.file)
	if err != nil || n == nil {
		return nil
	}
	if m, ok := n.(*ast.MappingNode); ok && len(m.Values) > 0 {
		return m.Values[0].Key.GetToken() // the token of a block mapping is its first colon
	}
	return n.GetToken()
}

// keys are those that a mapping of the source has.
func (src *source) keys(path string) []string {
	p, err := yaml.PathString("$." + path)
	if err != nil {
		return nil
	}
	r, err := p.FilterFile(src.file)
	if err != nil || r == nil {
		return nil
	}
	var names []string
	switch m := r.(type) {
	case *ast.MappingNode:
		for _, v := range m.Values {
			names = append(names, v.Key.GetToken().Value)
		}
	case *ast.MappingValueNode:
		names = append(names, m.Key.GetToken().Value)
	}
	return names
}

// Unused returns an error for the first key of experiment i that is not among
// used: what a study says must have an effect.
func (s *Study) Unused(i int, used []string) error {
	if s.source == nil {
		return nil
	}
	path := fmt.Sprintf("experiments[%d]", i)
	for _, k := range s.source.keys(path) {
		if !slices.Contains(used, k) {
			return s.At(path+"."+k, fmt.Errorf("the experiment %s does not use it; it uses %s", s.Experiments[i].Experiment, strings.Join(used, ", ")))
		}
	}
	return nil
}

// Encode writes the study as it is to be run, each experiment with the keys that
// it uses, so that it can be read again.
func (s *Study) Encode(w io.Writer, used func(experiment string) []string) error {
	plain, err := yaml.Marshal(s)
	if err != nil {
		return err
	}
	var doc yaml.MapSlice
	if err := yaml.UnmarshalWithOptions(plain, &doc, yaml.UseOrderedMap()); err != nil {
		return err
	}
	for i := range doc {
		list, ok := doc[i].Value.([]any)
		if doc[i].Key != "experiments" || !ok {
			continue
		}
		for j := range list {
			e, ok := list[j].(yaml.MapSlice)
			if !ok {
				return fmt.Errorf("experiments[%d] is no mapping", j)
			}
			keep := used(s.Experiments[j].Experiment)
			list[j] = slices.DeleteFunc(e, func(item yaml.MapItem) bool {
				return !slices.Contains(keep, fmt.Sprint(item.Key))
			})
		}
	}
	out, err := yaml.Marshal(doc)
	if err != nil {
		return err
	}
	_, err = w.Write(out)
	return err
}
