// SPDX-License-Identifier: Apache-2.0

package hapax

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"
)

// The kinds of frames (docs/door.md).
const (
	kindHello, kindWelcome, kindBegin, kindResume uint8 = 1, 2, 3, 4
	kindRun, kindReconcile, kindEnd, kindAnswer   uint8 = 5, 6, 7, 8
	kindBeat, kindLost, kindCancel, kindFault     uint8 = 9, 10, 11, 12
)

const (
	headSize = 13               // length, kind, op, meta_len
	bodyMax  = 16 << 20         // of an outcome
	metaMax  = 1<<20 - 8<<10    // of what the door takes: 1 MiB, with room for the ticket of a RESUME
	frameMax = 17 << 20         // by the length field, until WELCOME says otherwise
	readMax  = frameMax + 1<<20 // what is read; more is no frame
)

type frame struct {
	kind uint8
	op   uint32
	meta []byte
	body []byte
}

// newFrame returns a frame with v as its meta, where v has a form in JSON.
func newFrame(kind uint8, op uint32, v any, body []byte) (frame, error) {
	meta, err := json.Marshal(v)
	return frame{kind, op, meta, body}, err
}

func (f *frame) length() int { return headSize - 4 + len(f.meta) + len(f.body) }

// fits reports whether the door takes a frame. One that it does not take ends the connection.
func (f *frame) fits(limit int) bool { return len(f.meta) <= metaMax && f.length() <= limit }

// head returns the bytes of a frame that stand before its body.
func (f *frame) head() []byte {
	out := make([]byte, headSize, headSize+len(f.meta))
	binary.BigEndian.PutUint32(out, uint32(f.length()))
	out[4] = f.kind
	binary.BigEndian.PutUint32(out[5:], f.op)
	binary.BigEndian.PutUint32(out[9:], uint32(len(f.meta)))
	return append(out, f.meta...)
}

func readFrame(from io.Reader) (frame, error) {
	var head [headSize]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return frame{}, err
	}
	length := uint64(binary.BigEndian.Uint32(head[:]))
	meta := uint64(binary.BigEndian.Uint32(head[9:]))
	if length > readMax || length < headSize-4+meta {
		return frame{}, fmt.Errorf("no frame of Hapax: a length of %d, %d of it meta", length, meta)
	}
	rest := make([]byte, length-(headSize-4))
	if _, err := io.ReadFull(from, rest); err != nil {
		return frame{}, err
	}
	return frame{head[4], binary.BigEndian.Uint32(head[5:]), rest[:meta:meta], rest[meta:]}, nil
}

// read decodes the meta of a frame. Members that are not known are ignored.
func (f *frame) read(into any) error {
	if len(f.meta) == 0 {
		return nil
	}
	return json.Unmarshal(f.meta, into)
}

// fault reads a FAULT: its error, and the kind of the frame that was refused.
func (f *frame) fault() (*Error, uint8) {
	var fault struct {
		Error, Text string
		Kind        uint8
	}
	_ = f.read(&fault)
	return &Error{Answer: fault.Error, RetryAfter: -1, Text: fault.Text}, fault.Kind
}

// Text is bytes that are a string in JSON where they are UTF-8, and {"base64": …} otherwise.
type Text string

// MarshalJSON writes the text as docs/door.md says.
func (t Text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return json.Marshal(string(t))
	}
	return []byte(`{"base64":` + strconv.Quote(base64.StdEncoding.EncodeToString([]byte(t))) + `}`), nil
}

// UnmarshalJSON reads either form.
func (t *Text) UnmarshalJSON(from []byte) error {
	if len(from) == 0 || from[0] != '{' {
		return json.Unmarshal(from, (*string)(t))
	}
	raw := struct{ Base64 []byte }{}
	err := json.Unmarshal(from, &raw)
	*t = Text(raw.Base64)
	return err
}
