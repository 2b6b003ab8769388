// SPDX-License-Identifier: Apache-2.0
package hapax.http;

import java.io.IOException;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandler;
import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.time.DateTimeException;
import java.time.Duration;
import java.time.Instant;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;
import java.util.HexFormat;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;

/**
 * For clients of an API that knows Idempotency-Key: one key per call, and the same key on each retry.
 *
 * <pre>{@code
 * var api = new Retrying(HttpClient.newHttpClient());
 * HttpResponse<String> response = api.send(request, BodyHandlers.ofString());
 * Problem problem = Problem.of(response);      // null: none; problem.code() is "in-flight", …
 * }</pre>
 *
 * A POST or PATCH without the header gets a new random key; a request of any method that has the header keeps it
 * ({@link #quoted(byte[])}). All other requests are sent as they are, once. A call is tried again after an error of the
 * connection, and after 408, 425, 429, 500, 502, 503, 504, and a 409 with Retry-After ("in flight"). Between tries it waits:
 * pause, twice as long each time, half of it at random; and for Retry-After, which is not waited for where it is over a
 * minute. The last try's response or error is the call's. Safe from any thread.
 */
public final class Retrying {
    private static final SecureRandom RANDOM = new SecureRandom();
    private static final Set<Integer> PASSING = Set.of(408, 425, 429, 500, 502, 503, 504);
    private static final Duration RETRY_AFTER_MAX = Duration.ofMinutes(1), PAUSE_MAX = Duration.ofSeconds(10);

    private final HttpClient client;
    private final int tries;
    private final Duration pause;

    /** Four tries; 0.5 s before the second one. */
    public Retrying(HttpClient client) {
        this(client, 4, Duration.ofMillis(500));
    }

    public Retrying(HttpClient client, int tries, Duration pause) {
        this.client = client;
        this.tries = tries;
        this.pause = pause;
    }

    /** Sends a request, with its retries. The body is published anew for each. */
    public <T> HttpResponse<T> send(HttpRequest request, BodyHandler<T> handler) throws IOException, InterruptedException {
        boolean keyed = request.headers().firstValue("Idempotency-Key").isPresent();
        if (!keyed && !Set.of("POST", "PATCH").contains(request.method()))
            return client.send(request, handler);
        HttpRequest sent = keyed ? request : HttpRequest.newBuilder(request, (name, value) -> true)
                .setHeader("Idempotency-Key", quoted(newKey())).build();
        Duration wait = pause;
        for (int attempt = 1;; attempt++) {
            HttpResponse<T> response = null;
            IOException failed = null;
            try {
                response = client.send(sent, handler);
            } catch (IOException e) {
                failed = e;
            }
            Optional<Duration> told = response == null ? Optional.empty() : retryAfter(response);
            boolean again = response == null || PASSING.contains(response.statusCode())
                    || response.statusCode() == 409 && told.isPresent();
            if (!again || attempt >= tries || told.isPresent() && told.get().compareTo(RETRY_AFTER_MAX) > 0) {
                if (failed != null)
                    throw failed;
                return response;
            }
            long half = wait.toMillis() / 2;
            Thread.sleep(told.orElse(Duration.ZERO).toMillis() + half + ThreadLocalRandom.current().nextLong(half + 1));
            wait = wait.multipliedBy(2).compareTo(PAUSE_MAX) < 0 ? wait.multipliedBy(2) : PAUSE_MAX;
        }
    }

    private static String newKey() {
        byte[] key = new byte[16];
        RANDOM.nextBytes(key);
        return HexFormat.of().formatHex(key);
    }

    /**
     * The value of the header Idempotency-Key for a key: in quotes. Within a handler the key is {@code op.keyBytes()}. A key
     * that is not printable ASCII is sent as "sha256-" and its hash, as a consumer does.
     */
    public static String quoted(byte[] key) {
        boolean plain = true;
        for (byte c : key)
            plain &= c >= ' ' && c <= '~';
        String text = plain ? new String(key, StandardCharsets.US_ASCII) : Attempt.hash(key);
        return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"") + '"';
    }

    /** The same, of a key that is a text. */
    public static String quoted(String key) {
        return quoted(key.getBytes(StandardCharsets.UTF_8));
    }

    /** The header Retry-After: seconds, or a date. */
    static Optional<Duration> retryAfter(HttpResponse<?> response) {
        String value = response.headers().firstValue("Retry-After").orElse("");
        if (value.matches("[0-9]{1,9}"))
            return Optional.of(Duration.ofSeconds(Long.parseLong(value)));
        try {
            Duration left = Duration.between(Instant.now(), ZonedDateTime.parse(value, DateTimeFormatter.RFC_1123_DATE_TIME));
            return Optional.of(left.isNegative() ? Duration.ZERO : left);
        } catch (DateTimeException e) {
            return Optional.empty();
        }
    }
}
