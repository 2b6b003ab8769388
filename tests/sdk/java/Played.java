// SPDX-License-Identifier: Apache-2.0
import hapax.Codec;
import hapax.Hapax;
import hapax.HapaxException;
import hapax.Key;
import hapax.Options;
import hapax.Request;

import java.io.EOFException;
import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/** A played door, and what sdk/java makes of its words (test_java.py). */
class Played implements AutoCloseable {
    static final int HELLO = 1, WELCOME = 2, BEGIN = 3, RESUME = 4, RUN = 5, RECONCILE = 6, END = 7, ANSWER = 8, FAULT = 12;
    static final Map<String, Object> RUNS = Map.of("attempt", 1, "fence", 1, "ticket", "T");
    static final Map<String, Object> FRESH = Map.of("answer", "fresh", "own", true, "recorded", true);
    private static final Codec JSON = Codec.json();

    /** A frame of a client. */
    record Heard(int op, Map<?, ?> members) {
    }

    private final Path path = Files.createTempDirectory("hapax-played").resolve("s");
    private final ServerSocketChannel listener = ServerSocketChannel.open(StandardProtocolFamily.UNIX);
    private SocketChannel client;
    final Hapax hapax = Hapax.connect("unix:" + path, Duration.ofSeconds(20), JSON);

    Played() throws IOException {
        listener.bind(UnixDomainSocketAddress.of(path));
    }

    private ByteBuffer read(int length) throws IOException {
        ByteBuffer out = ByteBuffer.allocate(length);
        while (out.hasRemaining())
            if (client.read(out) < 0)
                throw new EOFException();
        return out.flip();
    }

    /** The next frame of the client, which is of this kind. */
    Heard heard(int kind) throws Exception {
        if (client == null) {
            client = listener.accept();
            heard(HELLO);
            say(WELCOME, 0, Map.of("version", 1, "beat_ms", 600_000));
        }
        ByteBuffer head = read(13);
        int length = head.getInt() - 9, came = head.get(), op = head.getInt(), size = head.getInt();
        byte[] meta = Arrays.copyOf(read(length).array(), size);
        if (came != kind)
            throw new IllegalStateException("a frame of kind " + came + " came, and not " + kind);
        return new Heard(op, (Map<?, ?>) JSON.decode(meta, Map.class));
    }

    void say(int kind, int op, Map<String, ?> members) throws Exception {
        byte[] meta = JSON.encode(members);
        ByteBuffer out = ByteBuffer.allocate(13 + meta.length);
        out.putInt(9 + meta.length).put((byte) kind).putInt(op).putInt(meta.length).put(meta).flip();
        while (out.hasRemaining())
            client.write(out);
    }

    /** Tells the next BEGIN to run, and gives its op. */
    int run() throws Exception {
        int op = heard(BEGIN).op();
        say(RUN, op, RUNS);
        return op;
    }

    @Override
    public void close() throws IOException {
        hapax.close();
        listener.close();
        Files.delete(path);
        Files.delete(path.getParent());
    }

    /** What a call gives its caller, or the name of what it throws. */
    static CompletableFuture<String> given(Supplier<Object> call) {
        return CompletableFuture.supplyAsync(() -> {
            try {
                return String.valueOf(call.get());
            } catch (HapaxException e) {
                return e.answer();
            } catch (RuntimeException | Error e) {
                return e.getClass().getSimpleName();
            }
        }, work -> {
            Thread thread = new Thread(work);
            thread.setDaemon(true);
            thread.start();
        });
    }

    CompletableFuture<String> call(Options options) {
        return given(() -> hapax.once(Key.of("s", "k"), String.class, op -> "done", options));
    }

    static void same(String what, CompletableFuture<String> given, String wanted) throws Exception {
        Checks.same(what, given.get(30, TimeUnit.SECONDS), wanted);
    }

    // What is over a limit is refused, or ends as unknown, by itself. The calls beside it go on.
    static void limits() throws Exception {
        try (Played door = new Played()) {
            String tooLong = "x".repeat(1 << 20);
            var beside = door.call(Options.none());
            int op = door.run();
            door.heard(END);
            same("long members", door.call(Options.none().owner(tooLong)), "IllegalArgumentException");
            var headers = given(() -> door.hapax.begin(new Request().set("key", "k")).op()
                    .end(null, 200, List.<String[]>of(new String[] {"A", tooLong}), null));
            int other = door.run();
            Checks.same("the END of long headers", door.heard(END).members().get("class"), "unknown");
            door.say(ANSWER, other, FRESH);
            same("long headers", headers, "invalid");
            door.say(ANSWER, op, FRESH);
            same("a call beside them", beside, "done");
        }
    }

    // Where the door ends, or has no room, nothing ran: the store is down. Of what was told to run nobody knows.
    static void refusals() throws Exception {
        try (Played door = new Played()) {
            for (String[] says : new String[][] {{"unavailable", "store_down"}, {"nomem", "store_down"}, {"invalid", "invalid"}}) {
                var refused = door.call(Options.none());
                door.say(FAULT, door.heard(BEGIN).op(), Map.of("error", says[0], "text", "no", "kind", BEGIN));
                same("a BEGIN that is " + says[0], refused, says[1]);
            }
            for (Object[] says : new Object[][] {{"invalid", RESUME, "indeterminate"}, {"nomem", END, "indeterminate"},
                    {"nomem", BEGIN, "indeterminate"}, {"invalid", END, "invalid"}}) {
                var refused = door.call(Options.none());
                int op = door.run();
                door.heard(END);
                door.say(FAULT, op, Map.of("error", says[0], "text", "no", "kind", says[1]));
                same("of what ran " + says[0] + " of " + says[1], refused, (String) says[2]);
            }
        }
    }

    // A hook that breaks with an Error cannot tell, so nothing stays in flight, and the Error goes on.
    static void hooks() throws Exception {
        try (Played door = new Played()) {
            var asked = door.call(Options.none().reconcile(op -> {
                throw new StackOverflowError();
            }));
            int op = door.heard(BEGIN).op();
            door.say(RECONCILE, op, RUNS);
            Checks.same("the END of a broken hook", door.heard(END).members().get("class"), "unknown");
            door.say(ANSWER, op, Map.of("answer", "unknown"));
            same("a broken hook", asked, "StackOverflowError");
        }
    }

    // An exception that cannot say what it is ends its attempt, too.
    static void messages() throws Exception {
        try (Played door = new Played()) {
            var ran = given(() -> door.hapax.once(Key.of("s", "k"), String.class, op -> {
                throw new Mute();
            }, Options.none()));
            int op = door.run();
            Checks.same("the END of a mute exception", door.heard(END).members().get("class"), "failed");
            door.say(ANSWER, op, FRESH);
            same("a mute exception", ran, "Mute");
        }
    }

    @SuppressWarnings("serial")
    static class Mute extends RuntimeException {
        @Override
        public String getMessage() {
            throw new IllegalStateException("broken");
        }
    }

    public static void main(String[] words) throws Exception {
        limits();
        refusals();
        hooks();
        messages();
        Checks.end();
    }
}
