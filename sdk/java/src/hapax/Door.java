// SPDX-License-Identifier: Apache-2.0
package hapax;

import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;

/**
 * The connection to hapax door, and the ops in hand. If the connection is lost, it connects again and resumes them.
 *
 * Two threads belong to it, which wait for no handler: one connects and reads, one writes and beats. A caller's thread
 * never touches the socket: an interrupt would close it.
 */
final class Door {
    private static final long PAUSE_MS = 50; // from one try to connect to the next
    private static final Frame NOT_RUN = Frame.of(Frame.END, 0, Map.of("class", "not_run"), null);
    static final int BODY_MAX = 16 << 20; // of an outcome
    static final Frame UNKNOWN = Frame.of(Frame.END, 0, Map.of("class", "unknown"), null);
    private static final Frame BEAT = Frame.of(Frame.BEAT, 0, Map.of(), null);
    private static final Frame BYPASS = Frame.of(Frame.ANSWER, 0, Map.of("answer", "bypass", "own", true), null);

    private final Path path;
    private final Duration timeout;
    private final ReentrantLock lock = new ReentrantLock(); // guards what is below, and all fields of calls
    private final Condition changed = lock.newCondition();
    private volatile SocketChannel channel; // null while there is none
    private Duration beat; // null until WELCOME
    private long greetEnd; // when WELCOME must be there
    private final ArrayDeque<Frame> queue = new ArrayDeque<>(); // to be written to the channel
    private final Map<Integer, Call> calls = new HashMap<>();
    private int last; // op of the newest call
    private int lengthMax = Frame.LENGTH_MAX;
    private boolean started, closed;

    enum State {
        ASKED, RUNNING, ENDED, OVER
    }

    /** What a caller waits for: RUN, RECONCILE, ANSWER, or why none comes. */
    record News(Frame frame, HapaxException error) {
    }

    /** An op in hand. */
    final class Call {
        final Request request;
        final BlockingQueue<News> news = new LinkedBlockingQueue<>(); // RECONCILE, RUN and the last word at most
        private int op;
        private String ticket; // for RESUME
        private Frame again; // BEGIN while ASKED, END while ENDED: to be sent again on a new connection
        private State state = State.ASKED;
        private boolean left; // nobody waits for it: it is given up where it was not run
        private boolean lost;
        private Thread handler; // to be interrupted when the claim is lost

        Call(Request request) {
            this.request = request;
        }

        int op() {
            return op;
        }

        boolean lost() {
            lock.lock();
            try {
                return lost;
            } finally {
                lock.unlock();
            }
        }

        /** The thread that runs the handler; null: it has ended. Returns whether the claim is lost. */
        boolean handledBy(Thread thread) {
            lock.lock();
            try {
                handler = thread;
                if (lost && thread != null)
                    thread.interrupt();
                return lost;
            } finally {
                lock.unlock();
            }
        }

        /** Sends END, unless the op is over. */
        void end(Frame end) {
            lock.lock();
            try {
                if (state == State.RUNNING)
                    sendEnd(end);
            } finally {
                lock.unlock();
            }
        }

        /** Gives up an op that was not told to run. */
        void leave() {
            lock.lock();
            try {
                left = true;
                if (state == State.ASKED)
                    send(Frame.of(Frame.CANCEL, op, Map.of(), null));
                else if (state == State.RUNNING) // its RUN is in news
                    sendEnd(NOT_RUN);
            } finally {
                lock.unlock();
            }
        }

        // ---- with the lock taken ----

        private void sendEnd(Frame end) {
            state = State.ENDED;
            again = end.withOp(op);
            send(again);
        }

        private void lose() {
            lost = true;
            if (handler != null)
                handler.interrupt();
        }

        private void finish(News lastWord) {
            calls.remove(op);
            state = State.OVER;
            again = null;
            news.add(lastWord);
        }
    }

    Door(String address, Duration timeout) {
        if (!address.startsWith("unix:"))
            throw new IllegalArgumentException("the door's address \"" + address + "\" is not unix:PATH");
        this.path = Path.of(address.substring("unix:".length()));
        this.timeout = timeout;
    }

    /** Sends BEGIN. What follows is in the call's news. */
    Call begin(Request request) {
        Frame frame = Frame.of(Frame.BEGIN, 0, request.members, request.body);
        Call call = new Call(request);
        lock.lock();
        try {
            if (closed)
                throw new IllegalStateException("hapax: the door was closed by the program");
            if (frame.length() > lengthMax)
                throw new IllegalArgumentException(
                        "hapax: a request of " + frame.length() + " bytes is over " + lengthMax);
            do
                last++;
            while (last == 0 || calls.containsKey(last));
            call.op = last;
            call.again = frame.withOp(last);
            calls.put(last, call);
            send(call.again);
            if (!started) {
                daemon("hapax-door", this::read);
                daemon("hapax-door-writer", this::write);
                started = true;
            }
            changed.signalAll();
            return call;
        } finally {
            lock.unlock();
        }
    }

    int lengthMax() {
        lock.lock();
        try {
            return lengthMax;
        } finally {
            lock.unlock();
        }
    }

    void close() {
        lock.lock();
        try {
            closed = true;
            hangUp();
            fail("the program closed its door");
            changed.signalAll();
        } finally {
            lock.unlock();
        }
    }

    private static void daemon(String name, Runnable work) {
        Thread thread = new Thread(work, name);
        thread.setDaemon(true);
        thread.start();
    }

    // ---- the thread that connects and reads ----------------------------------------------

    private void read() {
        for (;;) {
            String broken;
            try {
                connect();
                broken = serve();
                pause(); // a door that hangs up each time is not asked for ever without a rest
            } catch (IOException e) {
                broken = e.getMessage();
            }
            lock.lock();
            try {
                if (broken != null)
                    fail(broken);
                while (calls.isEmpty() && !closed)
                    changed.awaitUninterruptibly();
                if (closed)
                    return;
            } finally {
                lock.unlock();
            }
        }
    }

    /** Connects and reads WELCOME: again and again, until the time is over or the door refuses. */
    private void connect() throws IOException {
        for (long end = System.nanoTime() + timeout.toNanos();; pause()) {
            Exception why;
            try (Opened mine = new Opened(end)) {
                greet(mine);
                return;
            } catch (IOException | RuntimeException e) {
                why = e;
            }
            lock.lock();
            try {
                channel = null;
                if (closed || why instanceof Refused || System.nanoTime() - end > 0)
                    throw new IOException("no door at unix:" + path + ": " + why.getMessage(), why);
            } finally {
                lock.unlock();
            }
        }
    }

    /** A socket that is closed again unless the door has welcomed us. */
    private final class Opened implements AutoCloseable {
        final SocketChannel socket = SocketChannel.open(StandardProtocolFamily.UNIX);

        Opened(long end) throws IOException {
            lock.lock();
            try {
                channel = socket; // so that close() ends a greeting, and the writer one that takes too long
                greetEnd = end;
                changed.signalAll();
            } finally {
                lock.unlock();
            }
            try {
                socket.connect(UnixDomainSocketAddress.of(path));
            } catch (IOException | RuntimeException e) {
                close();
                throw e;
            }
        }

        @Override
        public void close() throws IOException {
            if (beat == null)
                socket.close();
        }
    }

    private void greet(Opened mine) throws IOException {
        Map<String, ?> hello = Map.of("hapax", 1, "client", "java/0.1", "pid", ProcessHandle.current().pid());
        IOException unsent = null;
        try {
            write(mine.socket, List.of(Frame.of(Frame.HELLO, 0, hello, null)));
        } catch (IOException e) {
            unsent = e; // a door that turns us away says why, even where it did not read
        }
        Frame frame;
        try {
            frame = Frame.read(mine.socket);
        } catch (IOException e) {
            throw unsent == null ? e : unsent;
        }
        Map<String, Object> said = frame.members();
        if (frame.kind() == Frame.FAULT && "unavailable".equals(said.get("error")))
            throw new IOException(String.valueOf(said.get("text")));
        if (frame.kind() == Frame.FAULT)
            throw new Refused(said.get("error") + ": " + said.get("text"));
        if (frame.kind() != Frame.WELCOME || !Long.valueOf(1).equals(said.get("version"))
                || !(said.get("beat_ms") instanceof Long beatMs) || beatMs <= 0)
            throw new Refused("the door speaks version " + said.get("version"));
        lock.lock();
        try {
            beat = Duration.ofMillis(beatMs);
            lengthMax = said.get("frame_max") instanceof Long most ? most.intValue() : Frame.LENGTH_MAX;
            queue.clear();
            resume();
            changed.signalAll();
        } finally {
            lock.unlock();
        }
    }

    /** The door's word that this client is not for it: no other try would be better. */
    private static final class Refused extends IOException {
        private static final long serialVersionUID = 1;

        Refused(String text) {
            super(text);
        }
    }

    private static void pause() {
        try {
            Thread.sleep(PAUSE_MS);
        } catch (InterruptedException e) {
            // nobody has this thread; the next try comes early
        }
    }

    /** Reads until the connection is lost. Returns why no other connection would be better, or null. */
    private String serve() {
        String broken = null;
        try {
            while (broken == null) {
                Frame frame = Frame.read(channel);
                lock.lock();
                try {
                    broken = take(frame);
                } finally {
                    lock.unlock();
                }
            }
        } catch (IOException | RuntimeException e) {
            // it is lost, or is no door's
        }
        lock.lock();
        try {
            hangUp();
            for (Call call : new ArrayList<>(calls.values()))
                if (call.left && call.state == State.ASKED)
                    call.finish(new News(null, null));
                else if (call.state != State.ASKED && call.ticket == null) // it runs without the store
                    call.finish(new News(BYPASS, null));
            return broken;
        } finally {
            lock.unlock();
        }
    }

    // ---- the thread that writes and beats ------------------------------------------------

    private void write() {
        for (;;) {
            SocketChannel to;
            List<Frame> frames;
            lock.lock();
            try {
                while (!closed && (beat == null || queue.isEmpty()))
                    await();
                if (closed)
                    return;
                to = channel;
                frames = new ArrayList<>(queue);
                queue.clear();
            } finally {
                lock.unlock();
            }
            try {
                write(to, frames);
            } catch (IOException e) {
                closeQuietly(to); // the reader goes on
            }
        }
    }

    /** Waits for a change; or until a beat is due, or the time to greet is over. */
    private void await() {
        long wait = beat != null ? beat.toNanos() : channel != null ? greetEnd - System.nanoTime() : Long.MAX_VALUE;
        try {
            if (wait > 0 && changed.awaitNanos(wait) > 0)
                return;
        } catch (InterruptedException e) {
            return; // nobody has this thread
        }
        if (beat == null)
            closeQuietly(channel);
        else if (!calls.isEmpty())
            queue.add(BEAT);
    }

    private static void write(SocketChannel to, List<Frame> frames) throws IOException {
        for (Frame frame : frames) {
            ByteBuffer[] buffers = frame.buffers();
            while (buffers[1].hasRemaining() || buffers[0].hasRemaining())
                to.write(buffers);
        }
    }

    private static void closeQuietly(SocketChannel channel) {
        try {
            if (channel != null)
                channel.close();
        } catch (IOException e) {
            // it is of no use either way
        }
    }

    // ---- with the lock taken -------------------------------------------------------------

    private void hangUp() {
        closeQuietly(channel);
        channel = null;
        beat = null;
    }

    /** Without a connection a frame is dropped: resume() sends what matters. */
    private void send(Frame frame) {
        if (beat != null) {
            queue.add(frame);
            changed.signalAll();
        }
    }

    /** Tells a new connection of the calls in hand: an operation before its steps, and what runs before what was asked. */
    private void resume() {
        for (int pass = 0; pass < 3; pass++)
            for (Call call : calls.values()) {
                int turn = call.state == State.ASKED ? 2 : call.request.members.containsKey("in") ? 1 : 0;
                if (turn != pass)
                    continue;
                if (call.state != State.ASKED)
                    send(Frame.of(Frame.RESUME, call.op, call.request.resumed(call.ticket), null));
                if (call.state != State.RUNNING)
                    send(call.again);
            }
    }

    private void fail(String why) {
        for (Call call : new ArrayList<>(calls.values())) {
            HapaxException error = call.state == State.ASKED
                    ? new HapaxException("store_down", why, null) : new HapaxException("indeterminate", why, null);
            call.lose();
            call.finish(new News(null, error));
        }
    }

    /** Gives a frame to its call. Returns null, or why door and client do not understand each other. */
    private String take(Frame frame) {
        Call call = calls.get(frame.op());
        Map<String, Object> said = frame.kind() == Frame.FAULT ? frame.members() : Map.of();
        if (frame.kind() == Frame.FAULT && frame.op() == 0)
            return said.get("error") + ": " + said.get("text");
        if (call == null)
            return null; // it is over for us
        switch (frame.kind()) {
            case Frame.RUN, Frame.RECONCILE -> {
                if (call.state == State.RUNNING)
                    return "a RUN that nobody waits for";
                call.state = State.RUNNING;
                call.ticket = (String) frame.members().get("ticket");
                call.again = null;
                if (call.left)
                    call.sendEnd(NOT_RUN);
                else
                    call.news.add(new News(frame, null));
            }
            case Frame.LOST -> call.lose();
            case Frame.ANSWER -> call.finish(new News(frame, null));
            case Frame.FAULT -> {
                Object of = said.get("kind");
                if (Long.valueOf(Frame.BEAT).equals(of) || Long.valueOf(Frame.CANCEL).equals(of))
                    break;
                call.lose();
                call.finish(new News(null, new HapaxException((String) said.get("error"), (String) said.get("text"), null)));
            }
            default -> { } // of a newer door
        }
        return null;
    }
}
