// SPDX-License-Identifier: Apache-2.0
package hapax;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Objects;

/** A frame of docs/door.md. */
record Frame(int kind, int op, byte[] meta, byte[] body) {
    static final int HELLO = 1, WELCOME = 2, BEGIN = 3, RESUME = 4, RUN = 5, RECONCILE = 6, END = 7, ANSWER = 8, BEAT = 9,
            LOST = 10, CANCEL = 11, FAULT = 12;
    static final int LENGTH_MAX = 17 << 20; // until WELCOME says otherwise
    private static final int HEAD = 13; // length, kind, op, meta_len
    private static final byte[] NONE = {};
    private static final Json JSON = new Json();

    static Frame of(int kind, int op, Map<String, ?> members, byte[] body) {
        return new Frame(kind, op, members.isEmpty() ? NONE : JSON.encode(members), body == null ? NONE : body);
    }

    Frame withOp(int another) {
        return new Frame(kind, another, meta, body);
    }

    int length() {
        return HEAD - 4 + meta.length + body.length;
    }

    /** Whether the door takes the frame: meta is up to 1 MiB, with room for the ticket of a RESUME. Otherwise it hangs up. */
    boolean fits(int lengthMax) {
        return length() <= lengthMax && meta.length <= (1 << 20) - (8 << 10);
    }

    /** All bytes of the frame, in two buffers. */
    ByteBuffer[] buffers() {
        ByteBuffer head = ByteBuffer.allocate(HEAD + meta.length);
        head.putInt(length()).put((byte) kind).putInt(op).putInt(meta.length).put(meta).flip();
        return new ByteBuffer[] {head, ByteBuffer.wrap(body)};
    }

    static Frame read(SocketChannel from) throws IOException {
        ByteBuffer head = ByteBuffer.wrap(bytes(from, HEAD));
        int length = head.getInt() - (HEAD - 4), kind = head.get() & 0xff, op = head.getInt(), metaLength = head.getInt();
        if (length < 0 || length > LENGTH_MAX + (1 << 20) || metaLength < 0 || metaLength > length)
            throw new IOException("no frame of Hapax");
        return new Frame(kind, op, bytes(from, metaLength), bytes(from, length - metaLength));
    }

    private static byte[] bytes(SocketChannel from, int length) throws IOException {
        ByteBuffer out = ByteBuffer.allocate(length);
        while (out.hasRemaining())
            if (from.read(out) < 0)
                throw new EOFException("the door has closed the connection");
        return out.array();
    }

    /** The meta's members. Those that are null are absent. */
    Map<String, Object> members() {
        Map<String, Object> out = new LinkedHashMap<>();
        if (meta.length > 0)
            ((Map<?, ?>) Json.read(meta)).forEach((name, value) -> out.put((String) name, value));
        out.values().removeIf(Objects::isNull);
        return out;
    }

    /** TEXT of bytes: a string where they are UTF-8, and {"base64": …} otherwise. */
    static Object text(byte[] bytes) {
        try {
            return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes)).toString();
        } catch (CharacterCodingException e) {
            return Map.of("base64", Base64.getEncoder().encodeToString(bytes));
        }
    }

    /** The bytes of a TEXT. */
    static byte[] bytes(Object text) {
        if (text instanceof Map<?, ?> raw && raw.get("base64") instanceof String base64)
            return Base64.getDecoder().decode(base64);
        return text instanceof String string ? string.getBytes(StandardCharsets.UTF_8) : NONE;
    }
}
