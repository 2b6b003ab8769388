// SPDX-License-Identifier: Apache-2.0
package hapax.http;

import hapax.Codec;

import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.Optional;

/**
 * A refusal by a gate or by {@code hapax.servlet.OnceFilter}: a page of application/problem+json (RFC 9457).
 *
 * @param code what it is: "in-flight", "unknown-outcome", "fingerprint-mismatch", "store-unavailable", …
 * @param retryAfter when to send the same request again; empty: the response does not say
 * @param members all that the page has: type, title, status, detail, instance, original_status, since
 */
public record Problem(String code, Optional<Duration> retryAfter, Map<String, Object> members) {
    /** The problem that a response with a body of text is; null where it is none. */
    public static Problem of(HttpResponse<String> response) {
        String kind = response.headers().firstValue("Content-Type").orElse("");
        if (response.statusCode() < 400 || !kind.split(";")[0].strip().equalsIgnoreCase("application/problem+json"))
            return null;
        try {
            @SuppressWarnings("unchecked")
            var page = (Map<String, Object>) Codec.json().decode(response.body().getBytes(StandardCharsets.UTF_8), Map.class);
            String type = String.valueOf(page.get("type"));
            String code = type.substring(Math.max(type.lastIndexOf(':'), type.lastIndexOf('/')) + 1);
            return new Problem(code, Retrying.retryAfter(response), page);
        } catch (Exception e) {
            return null; // a page of somebody else's
        }
    }

    /** A line for people. */
    @Override
    public String toString() {
        return "hapax: " + code + ": " + members.get("title") + ". " + members.get("detail");
    }
}
