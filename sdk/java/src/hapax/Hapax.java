// SPDX-License-Identifier: Apache-2.0
package hapax;

import java.lang.reflect.Type;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CancellationException;

/**
 * Runs each logical request once, and gives every repeat the first result.
 *
 * <pre>{@code
 * var hapax = Hapax.connect();
 * Receipt r = hapax.once(Key.of("refunds", order.id()), Receipt.class, op -> {
 *     var charge = op.step("charge", Charge.class, s -> stripe.refund(order, s.key()));
 *     return new Receipt(charge.id());
 * }, Options.fingerprint(order).retention(Duration.ofDays(7)));
 * }</pre>
 *
 * The program talks to {@code hapax door}, which runs on the same machine and makes all decisions: this library holds no
 * lease, no claim and no retry of a store. One object serves all threads of a process, virtual ones too.
 */
public final class Hapax implements AutoCloseable {
    private static final int ERROR_MAX = 16 << 10; // characters of an error that are kept

    final Door door;
    private final Codec codec;

    private Hapax(String address, Duration timeout, Codec codec) {
        this.door = new Door(address, timeout);
        this.codec = codec;
    }

    /** A door at $HAPAX_DOOR, or else at unix:/run/hapax/door.sock. It is connected to when it is first needed. */
    public static Hapax connect() {
        return connect(null);
    }

    /** A door at "unix:PATH"; null: as {@link #connect()}. */
    public static Hapax connect(String address) {
        return connect(address, Duration.ofSeconds(10), new Json());
    }

    /** timeout: how long to try to connect, where nobody listens yet, or no more. codec: how results become bytes. */
    public static Hapax connect(String address, Duration timeout, Codec codec) {
        String named = address != null ? address : System.getenv("HAPAX_DOOR");
        return new Hapax(named == null || named.isEmpty() ? "unix:/run/hapax/door.sock" : named, timeout, codec);
    }

    /** Closes the connection. The door ends what is in hand as unknown: close when nothing is. */
    @Override
    public void close() {
        door.close();
    }

    /**
     * Runs the handler at most once for this key, and gives each caller the result of that run.
     *
     * The result is stored before it is returned. Every value is a result, also null, false, 0 and "". An exception of the
     * handler goes to this caller alone: the next one runs the handler again, unless a policy says otherwise. While the
     * handler runs its claim is kept alive (policy run_max: 1 h). If the claim is lost its thread is interrupted, and
     * {@link Op#lost} says so.
     *
     * @throws HapaxException where there is no result
     * @throws CancellationException where the thread is interrupted before the handler was begun; nothing ran
     */
    public <T, E extends Exception> T once(Key key, Class<T> type, Handler<T, E> handler, Options... options) throws E {
        if (key.key().length == 0)
            throw new HapaxException("invalid", "no key: an operation without one would run unprotected", null);
        Request request = new Request().set("scope", key.scope()).set("key", key.key());
        List.of(options).forEach(some -> some.into(request));
        return call(request, type, handler);
    }

    /** As {@link #once}, of a request; the type may be generic. For adapters. */
    public <T, E extends Exception> T call(Request request, Type type, Handler<T, E> handler) throws E {
        Ended<T> ended = drive(request, handler);
        Answer answer = ended.turn.answer();
        if (answer.own())
            return ended.thrown == null ? ended.value : Hapax.<T, RuntimeException>rethrow(ended.thrown); // E, or unchecked
        if (!answer.answer().equals("replay") || answer.status() >= 400)
            throw HapaxException.of(answer);
        return decode(answer.body(), type);
    }

    /**
     * As {@link #once}, of a message from a queue: says what becomes of the message. It is acknowledged only where this says
     * so. A handler that throws {@link Refused} makes the message dead.
     *
     * @throws HapaxException where nobody can say; the message is to be delivered again
     */
    public Told message(Request request, Handler<?, ?> handler) {
        Ended<?> ended = drive(request.set("as", "message"), handler);
        return new Told(ended.turn.answer(), ended.thrown);
    }

    /** Asks for an operation, for adapters: an Op to run the handler and then to end, or an answer. */
    public Op.Turn begin(Request request) {
        if (request.reconciler != null && "http".equals(request.members.get("as")))
            throw new HapaxException("invalid", "Options.reconcile: HTTP has no such hook; use Options.hold", null);
        return hear(door.begin(request), true);
    }

    Op.Turn hear(Door.Call call, boolean interruptible) {
        Door.News news = null;
        boolean interrupted = false;
        while (news == null)
            try {
                news = call.news.take();
            } catch (InterruptedException e) {
                interrupted = true;
                if (interruptible) {
                    door.leave(call);
                    Thread.currentThread().interrupt();
                    throw new CancellationException("interrupted before the operation was begun");
                }
            }
        if (interrupted)
            Thread.currentThread().interrupt();
        if (news.error() != null)
            throw news.error();
        return news.frame().kind() != Frame.ANSWER ? new Op.Turn(new Op(this, call, news.frame()), null)
                : new Op.Turn(null, new Answer(news.frame().members(), news.frame().body()));
    }

    private record Ended<T>(T value, Throwable thrown, Op.Turn turn) {
    }

    private <T> Ended<T> drive(Request request, Handler<T, ?> handler) {
        Ended<T> ended = new Ended<>(null, null, begin(request));
        while (ended.turn.op() != null)
            ended = ended.turn.op().reconcile() ? new Ended<>(null, null, ask(ended.turn.op(), request.reconciler))
                    : run(ended.turn.op(), handler);
        return ended;
    }

    @SuppressWarnings("unchecked")
    private static <T, X extends Throwable> T rethrow(Throwable thrown) throws X {
        throw (X) thrown;
    }

    private <T> Ended<T> run(Op op, Handler<T, ?> handler) {
        T value = null;
        boolean ran = false;
        byte[] body;
        try {
            value = op.<T, Exception, Exception>running(() -> handler.run(op));
            ran = true; // the effect has happened, also where its result cannot be kept
            body = encode(value);
        } catch (Throwable thrown) {
            String how = ran || thrown instanceof UnknownResult || thrown instanceof InterruptedException ? "unknown"
                    : thrown instanceof Refused ? "refuse"
                    : thrown instanceof NotRun no && !no.counted.getAndSet(true) && !op.call.stepped ? "not_run" : "failed";
            return new Ended<>(null, thrown, end(op, how, 500, "text/plain", said(thrown)));
        }
        return new Ended<>(value, null, end(op, value, body));
    }

    /** The handler has ended, also where its exception cannot say how. */
    private static byte[] said(Throwable thrown) {
        String text = thrown.getClass().getName();
        try {
            text = String.valueOf(thrown.getMessage());
        } catch (Throwable broken) {
            // its name has to do
        }
        return text.substring(0, Math.min(text.length(), ERROR_MAX)).getBytes(StandardCharsets.UTF_8);
    }

    private static Op.Turn end(Op op, String how, int status, String type, byte[] body) {
        return op.end(how, status, List.<String[]>of(new String[] {"Content-Type", type}), body);
    }

    private static Op.Turn end(Op op, Object value, byte[] body) {
        return end(op, "final", 200, value instanceof byte[] ? "application/octet-stream" : "application/json", body);
    }

    /** What follows the hook's word. Its result comes back as a replay. */
    private Op.Turn ask(Op op, Reconciler<?> reconciler) {
        Optional<?> result;
        byte[] body;
        try {
            result = reconciler.ask(op);
            body = result.isPresent() ? encode(result.get()) : null;
        } catch (Throwable e) {
            Op.Turn turn = op.end("unknown", 0, List.of(), null);
            return e instanceof Error ? Hapax.<Op.Turn, RuntimeException>rethrow(e) : turn;
        }
        return body == null ? op.end("not_run", 0, List.of(), null) : end(op, result.get(), body);
    }

    private byte[] encode(Object value) throws Exception {
        return value instanceof byte[] bytes ? bytes : codec.encode(value);
    }

    @SuppressWarnings("unchecked")
    private <T> T decode(byte[] body, Type type) {
        try {
            return (T) (type == byte[].class ? body : codec.decode(body, type));
        } catch (Exception e) {
            throw new IllegalArgumentException("hapax: the stored result is no " + type.getTypeName(), e);
        }
    }
}
