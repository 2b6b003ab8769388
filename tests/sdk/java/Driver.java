// SPDX-License-Identifier: Apache-2.0
import hapax.Codec;
import hapax.Hapax;
import hapax.HapaxException;
import hapax.Handler;
import hapax.Key;
import hapax.NotRun;
import hapax.Op;
import hapax.Options;
import hapax.Reconciler;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.Base64;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CancellationException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;

/** The driver of sdk/java for the cases in sdk/cases (its README says what is spoken). */
class Driver {
    private static final Codec JSON = Codec.json();
    private static final Hapax HAPAX = Hapax.connect(System.getenv("HAPAX_DOOR"), Duration.ofMinutes(1), JSON);
    private static final Map<String, BlockingQueue<Map<String, Object>>> BOXES = new ConcurrentHashMap<>();
    private static final Map<String, Thread> CALLERS = new ConcurrentHashMap<>();

    /** An error of the user's. */
    static class Raised extends RuntimeException {
        private static final long serialVersionUID = 1;

        Raised(String text) {
            super(text);
        }
    }

    static synchronized void say(Object... members) {
        Map<String, Object> event = new LinkedHashMap<>();
        for (int i = 0; i < members.length; i += 2)
            event.put((String) members[i], members[i + 1]);
        try {
            System.out.write(JSON.encode(event));
            System.out.write('\n');
            System.out.flush();
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }

    static BlockingQueue<Map<String, Object>> box(String id) {
        return BOXES.computeIfAbsent(id, none -> new LinkedBlockingQueue<>());
    }

    static Class<?> typeOf(Map<String, Object> command) {
        return command.containsKey("bytes") ? byte[].class : Object.class;
    }

    /** What a command to return says: bytes, or a value. */
    static Object result(Map<String, Object> command) {
        if (!(command.get("bytes") instanceof Map<?, ?> what))
            return command.get("value");
        if (what.get("base64") instanceof String base64)
            return Base64.getDecoder().decode(base64);
        byte[] bytes = new byte[((Number) what.get("size")).intValue()];
        for (int i = 0; i < bytes.length; i++)
            bytes[i] = (byte) (i % 251);
        return bytes;
    }

    static <T> Handler<T, RuntimeException> handler(String id, Class<T> type) {
        return op -> {
            say("run", id, "attempt", op.attempt(), "fence", op.fence(), "stale", op.stale(), "key", op.key(),
                    "traceparent", op.traceparent());
            for (boolean told = false;;) {
                Map<String, Object> command;
                try {
                    command = box(id).take();
                } catch (InterruptedException e) {
                    if (op.lost() && !told)
                        say("lost", id);
                    told = true;
                    continue;
                }
                switch ((String) command.get("do")) {
                    case "return": return type.cast(result(command));
                    case "raise": throw new Raised((String) command.get("text"));
                    case "not_run": throw new NotRun((String) command.get("text"));
                    case "nest": return HAPAX.once(Key.of((String) command.get("scope"), (String) command.get("key")), type,
                            handler((String) command.get("as"), type));
                    default:
                        if (command.containsKey("background"))
                            daemon(() -> step(op, command, typeOf(command)));
                        else
                            step(op, command, typeOf(command));
                }
            }
        };
    }

    static <T> void step(Op op, Map<String, Object> command, Class<T> type) {
        String as = (String) command.get("as");
        give(as, () -> op.step((String) command.get("name"), type, handler(as, type)));
    }

    static Reconciler<Object> hook(String id) {
        return op -> {
            say("reconcile", id, "attempt", op.attempt());
            Map<String, Object> command = box(id).take();
            if (command.get("do").equals("break"))
                throw new AssertionError("broken");
            if (command.get("do").equals("cannot_tell"))
                throw new Raised("cannot tell");
            return command.get("do").equals("happened") ? Optional.of(result(command)) : Optional.empty();
        };
    }

    interface Call {
        Object get();
    }

    /** Says what a call or a step gave its caller. */
    static void give(String id, Call call) {
        try {
            Object value = call.get();
            if (value instanceof byte[] bytes)
                say("end", id, "bytes", Map.of("size", bytes.length, "sha256",
                        HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(bytes))));
            else
                say("end", id, "value", value);
        } catch (NotRun e) {
            say("end", id, "error", "not_run", "text", e.getMessage());
        } catch (Raised e) {
            say("end", id, "error", "raised", "text", e.getMessage());
        } catch (HapaxException e) {
            Object after = e.retryAfter().map(Duration::toMillis).orElse(null);
            say("end", id, "error", e.answer(), "text", e.getMessage(), "differs", e.differs(), "retry_after_ms", after);
        } catch (AssertionError e) {
            say("end", id, "error", "raised", "text", e.getMessage());
        } catch (CancellationException e) {
            say("end", id, "error", "cancelled", "text", e.getMessage());
        } catch (Exception e) {
            say("end", id, "error", "invalid", "text", e.toString());
        }
    }

    static <T> void call(Map<String, Object> command, Class<T> type) {
        String id = (String) command.get("id");
        Options options = Options.fingerprint(((List<?>) command.get("args")).toArray());
        if (command.get("traceparent") instanceof String traceparent)
            options.traceparent(traceparent);
        if (command.containsKey("owner"))
            options.owner((String) command.get("owner"));
        if (command.containsKey("caller"))
            options.caller(command.get("caller") instanceof List<?> parts ? parts.toArray(new String[0]) : new String[0]);
        if (command.get("policy") instanceof Map<?, ?> policy)
            policy.forEach((name, value) -> options.policy((String) name, (String) value));
        if (command.containsKey("reconcile"))
            options.reconcile(hook(id));
        Key key = Key.of((String) command.get("scope"), (String) command.get("key"));
        CALLERS.put(id, daemon(() -> give(id, () -> HAPAX.once(key, type, handler(id, type), options))));
    }

    static Thread daemon(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    public static void main(String[] words) throws Exception {
        say("ready", "java/0.1.0", "can", List.of("cancel", "break"));
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            @SuppressWarnings("unchecked")
            var command = (Map<String, Object>) JSON.decode(line.getBytes(StandardCharsets.UTF_8), Map.class);
            String id = (String) command.get("id");
            switch ((String) command.get("do")) {
                case "call" -> call(command, typeOf(command));
                case "cancel" -> CALLERS.get(id).interrupt();
                default -> box(id).put(command);
            }
        }
        HAPAX.close();
    }
}
