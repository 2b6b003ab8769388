// SPDX-License-Identifier: Apache-2.0
package hapax.http;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.function.Function;

/**
 * What {@code hapax serve} or {@code hapax consume} tells the handler behind it. Only behind one of them are these headers to
 * be believed: both remove what a client sends under these names.
 *
 * @param keyBytes the operation's key; empty where the request has none
 * @param number counted from 1; 0 where nothing was claimed
 * @param fence what you write to should refuse a smaller one; 0 where nothing was claimed
 * @param token for {@link hapax.jdbc.Pg}, with --pass-token on, otherwise ""; a secret, not for logs
 */
public record Attempt(byte[] keyBytes, int number, long fence, String token) {
    private static final int KEY_MAX = 255, STEP_MAX = 64;

    /** The same, of a key that is a text. */
    public Attempt(String key, int number, long fence, String token) {
        this(key.getBytes(StandardCharsets.UTF_8), number, fence, token);
    }

    /** Reads the headers: {@code Attempt.of(request::getHeader)}. */
    public static Attempt of(Function<String, String> header) {
        return new Attempt(keyOf(header), (int) number(header.apply("Idempotency-Attempt")),
                number(header.apply("Idempotency-Fence")), text(header.apply("Idempotency-Token")));
    }

    private static String text(String value) {
        return value == null ? "" : value;
    }

    private static long number(String value) {
        return value == null || !value.matches("[0-9]{1,20}") ? 0 : Long.parseUnsignedLong(value);
    }

    /** A consumer sends the key percent-encoded; a gate as it came, in quotes or bare, after it was checked. */
    private static byte[] keyOf(Function<String, String> header) {
        String encoded = header.apply("Hapax-Key");
        if (encoded != null)
            return decoded(encoded);
        String value = text(header.apply("Idempotency-Key")).strip();
        if (!value.startsWith("\""))
            return value.getBytes(StandardCharsets.UTF_8);
        StringBuilder key = new StringBuilder();
        for (int i = 1; i < value.length() && value.charAt(i) != '"'; i++) {
            if (value.charAt(i) == '\\' && i + 1 < value.length())
                i++;
            key.append(value.charAt(i));
        }
        return key.toString().getBytes(StandardCharsets.UTF_8);
    }

    private static byte[] decoded(String text) {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        for (int i = 0; i < text.length(); i++) {
            boolean code = text.charAt(i) == '%' && i + 2 < text.length()
                    && text.substring(i + 1, i + 3).matches("[0-9a-fA-F]{2}");
            out.write(code ? Integer.parseInt(text.substring(i + 1, i + 3), 16) : text.charAt(i));
            i += code ? 2 : 0;
        }
        return out.toByteArray();
    }

    /** The key as a text, for people: what of it is no UTF-8 is U+FFFD, so two keys may have one text. */
    public String key() {
        return new String(keyBytes, StandardCharsets.UTF_8);
    }

    /**
     * The key to hand to the next service for one step of this operation: KEY:step. Over 255 bytes it is "sha256-" and the
     * hash of these bytes. They are the same in every attempt, and in every language. A step has 1 to 64 bytes and no ':'.
     */
    public byte[] stepKeyBytes(String step) {
        byte[] name = step.getBytes(StandardCharsets.UTF_8);
        if (keyBytes.length == 0 || keyBytes.length > KEY_MAX)
            throw new IllegalArgumentException("the key is empty, or over " + KEY_MAX + " bytes");
        if (name.length == 0 || name.length > STEP_MAX || step.contains(":"))
            throw new IllegalArgumentException("step \"" + step + "\" is not of 1 to " + STEP_MAX + " bytes, or holds a ':'");
        byte[] derived = ByteBuffer.allocate(keyBytes.length + 1 + name.length).put(keyBytes).put((byte) ':').put(name).array();
        return derived.length <= KEY_MAX ? derived : hash(derived).getBytes(StandardCharsets.UTF_8);
    }

    /** The same as a text: "sha256-" and the hash of bytes that are no UTF-8, as {@link Retrying#quoted(byte[])} sends them. */
    public String stepKey(String step) {
        byte[] derived = stepKeyBytes(step);
        try {
            return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(derived)).toString();
        } catch (CharacterCodingException e) {
            return hash(derived);
        }
    }

    static String hash(byte[] bytes) {
        try {
            return "sha256-" + HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(bytes));
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException(e); // every JDK has it
        }
    }

    /** For what a handler writes to: keep the highest fence that was seen, and refuse a smaller one. */
    public boolean isOlderThan(long seen) {
        return Long.compareUnsigned(fence, seen) < 0;
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Attempt that && Arrays.equals(keyBytes, that.keyBytes) && number == that.number
                && fence == that.fence && token.equals(that.token);
    }

    @Override
    public int hashCode() {
        return Arrays.hashCode(keyBytes) + number;
    }
}
