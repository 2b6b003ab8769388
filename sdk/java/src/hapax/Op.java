// SPDX-License-Identifier: Apache-2.0
package hapax;

import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Stream;

/** An attempt: the right to run the handler of an operation, or of a step, once. Safe from any thread. */
public final class Op {
    final Hapax hapax;
    final Door.Call call;
    private final Answer run; // its members
    private final boolean reconcile;
    private final AtomicBoolean ended = new AtomicBoolean();

    Op(Hapax hapax, Door.Call call, Frame frame) {
        this.hapax = hapax;
        this.call = call;
        this.run = new Answer(frame.members(), frame.body());
        this.reconcile = frame.kind() == Frame.RECONCILE;
    }

    /**
     * The key to hand to the next service as its idempotency key: the operation's own, in a step KEY:step. "": none. What of
     * it is no UTF-8 is U+FFFD: hand on the {@link #keyBytes} of such a key.
     */
    public String key() {
        return new String(keyBytes(), StandardCharsets.UTF_8);
    }

    /** The same, as bytes. */
    public byte[] keyBytes() {
        return Frame.bytes(run.members().get("key"));
    }

    /**
     * A number that rises with each attempt. What you write to should refuse a smaller one. 0 where the operation runs
     * unprotected.
     */
    public long fence() {
        return run.number("fence");
    }

    /** The number of this attempt, from 1 on. */
    public int attempt() {
        return (int) run.number("attempt");
    }

    /** An earlier attempt died, and may have had its effect. */
    public boolean stale() {
        return run.members().get("stale") == Boolean.TRUE;
    }

    /** The operation's id in hex, by which operators find it; "" without a key. */
    public String id() {
        return run.text("id");
    }

    /** The right to complete the record in a PostgreSQL transaction, under the policy pass_token. A secret, not for logs. */
    public String token() {
        return run.text("token");
    }

    /** Where this run stands among traces (W3C Trace Context), for what the handler calls; "": nowhere. */
    public String traceparent() {
        return run.text("traceparent");
    }

    /** The claim is lost: another attempt may be running. The handler's thread is interrupted then, once. */
    public boolean lost() {
        return call.lost;
    }

    /** The hook is to be asked instead of the handler; see {@link Reconciler}. */
    public boolean reconcile() {
        return reconcile;
    }

    /**
     * Runs a step at most once for this operation and name, and gives a later attempt of the operation its result. So a
     * handler that died half-way goes on where it stopped. The name has 1 to 64 bytes, no ':' and no '.' at its begin, and
     * is the same in every run. A step has no steps. Results and exceptions are those of {@link Hapax#once}.
     */
    public <T, E extends Exception> T step(String name, Class<T> type, Handler<T, E> handler) throws E {
        call.stepped = true;
        return hapax.call(new Request().set("step", name).set("in", call.op), type, handler);
    }

    /** What runs as a handler; see {@link #running}. */
    @FunctionalInterface
    public interface Body<T, A extends Exception, B extends Exception> {
        T run() throws A, B;
    }

    /** Runs a handler's body in this thread, which is interrupted if the claim is lost. For adapters. */
    public <T, A extends Exception, B extends Exception> T running(Body<T, A, B> body) throws A, B {
        hapax.door.handledBy(call, Thread.currentThread());
        try {
            return body.run();
        } finally {
            if (hapax.door.handledBy(call, null))
                Thread.interrupted(); // it was meant for the handler
        }
    }

    /** What follows: an Op that is to run, or an answer. */
    public record Turn(Op op, Answer answer) {
    }

    /**
     * Reports how the handler ended, and waits until the outcome is stored. For adapters. handlerClass: "final", "not_run",
     * "failed", "unknown", or of a message "refuse", whose body is the line that says why; null: by the status. Returns an
     * Op where the handler is to run after the hook.
     */
    public Turn end(String handlerClass, int status, List<String[]> headers, byte[] body) {
        Map<String, Object> members = new LinkedHashMap<>();
        if ("refuse".equals(handlerClass))
            members.put("refuse", new String(body, StandardCharsets.UTF_8));
        else if (handlerClass != null)
            members.put("class", handlerClass);
        return end(members, status, headers, body, body == null || body.length <= Door.BODY_MAX);
    }

    /** The same of a response whose body is not given, since it was passed on: repeats get "gone". The class is by the status. */
    public Turn endUnkept(int status, List<String[]> headers) {
        return end(new LinkedHashMap<>(), status, headers, null, false);
    }

    private Turn end(Map<String, Object> members, int status, List<String[]> headers, byte[] body, boolean kept) {
        if (!kept)
            members.put("body_kept", false);
        if (status != 0)
            members.put("status", status);
        if (!headers.isEmpty())
            members.put("headers", headers.stream().map(pair -> Stream.of(pair)
                    .map(part -> Frame.text(part.getBytes(StandardCharsets.ISO_8859_1))).toList()).toList());
        if (ended.getAndSet(true))
            throw new IllegalStateException("hapax: an attempt is ended twice");
        boolean fits = hapax.door.end(call, Frame.of(Frame.END, 0, members, kept ? body : null));
        Turn turn = hapax.hear(call, false);
        if (!fits)
            throw new HapaxException("invalid", "an outcome whose headers are over what the door takes", null);
        return turn;
    }
}
