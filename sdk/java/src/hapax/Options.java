// SPDX-License-Identifier: Apache-2.0
package hapax;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.function.Consumer;
import java.util.stream.Stream;

/** More about an operation than its key: {@code Options.fingerprint(order).hold().retention(Duration.ofDays(7))}. */
public final class Options {
    private final List<Consumer<Request>> settings = new ArrayList<>();

    private Options with(Consumer<Request> setting) {
        settings.add(setting);
        return this;
    }

    /** Puts these options into a request. */
    public void into(Request request) {
        settings.forEach(setting -> setting.accept(request));
    }

    /** No options yet. */
    public static Options none() {
        return new Options();
    }

    /** These options, and others, which count where both say something. */
    public Options and(Options others) {
        return with(others::into);
    }

    /**
     * What makes the request this request: the same key with another fingerprint is a "mismatch" ({@link HapaxException}). Values
     * are compared as JSON, however that is spelled, and no {@link Codec} is asked; a single byte[] counts as it is.
     * Give it the handler's arguments, or what is unlike in them.
     */
    public static Options fingerprint(Object... arguments) {
        return none().with(request -> {
            boolean raw = arguments.length == 1 && arguments[0] instanceof byte[];
            request.body(raw ? (byte[]) arguments[0] : new Json().encode(arguments));
            request.set("body", raw ? "body" : "json");
        });
    }

    /** Whose key it is: each owner has keys of its own. Null or empty: the operation is refused. */
    public Options owner(String owner) {
        return with(request -> request.set("owner", Objects.requireNonNullElse(owner, "")));
    }

    /**
     * Who asks: another caller with the same key gets a Mismatch, and no part of the outcome. Without a part that is
     * neither null nor empty the operation is refused.
     */
    public Options caller(String... parts) {
        List<String> given = Stream.of(parts).map(part -> Objects.requireNonNullElse(part, "")).toList();
        return with(request -> request.set("caller", given));
    }

    /** What it is, for operators. No key, no secret; cut at 255 bytes. */
    public Options what(String what) {
        return with(request -> request.set("what", what));
    }

    /** Where the caller stands among traces (W3C Trace Context); kept with the outcome. */
    public Options traceparent(String traceparent) {
        return with(request -> request.set("traceparent", traceparent));
    }

    /** A policy by the name and value that it has everywhere: policy("attempts_max", "3"). */
    public Options policy(String name, String value) {
        return with(request -> request.policy(name, value));
    }

    /**
     * on_expired=hold: after an attempt that died, or failed, nothing runs before an operator has decided. With
     * policy("on_failed", "retry") a failure runs again.
     */
    public Options hold() {
        return policy("on_expired", "hold");
    }

    /** How long an attempt may go without a sign of life. */
    public Options lease(Duration duration) {
        return policy("lease", duration.toMillis() + "ms");
    }

    /** How long the outcome is kept and replayed. */
    public Options retention(Duration duration) {
        return policy("retention", duration.toMillis() + "ms");
    }

    /** How long a repeat waits for the attempt in flight; zero: it gets InFlight at once. */
    public Options waiting(Duration duration) {
        return policy("wait", duration.toMillis() + "ms");
    }

    /** on_expired=reconcile, with this hook. A request of HTTP has none: it is refused, and nothing runs. */
    public Options reconcile(Reconciler<?> hook) {
        return policy("on_expired", "reconcile").with(request -> {
            request.set("reconciles", true);
            request.reconciler = hook;
        });
    }
}
