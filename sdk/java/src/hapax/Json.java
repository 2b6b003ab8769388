// SPDX-License-Identifier: Apache-2.0
package hapax;

import java.lang.invoke.MethodType;
import java.lang.reflect.Array;
import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.RecordComponent;
import java.lang.reflect.Type;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/**
 * JSON as far as frames and results need it: null, booleans, numbers, texts, lists, maps with keys of text, enums,
 * {@link Optional} and records. What else a program keeps it gives a {@link Codec} for.
 */
final class Json implements Codec {
    private static final int DEPTH_MAX = 64;
    private static final String SPACES = " \t\r\n", NUMBER = "-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][-+]?[0-9]+)?";
    /** What becomes of a number where a type asks for it; one that does not fit is refused. */
    private static final Map<Class<?>, Function<BigDecimal, Object>> NUMBERS = Map.of(
            Byte.class, BigDecimal::byteValueExact, Short.class, BigDecimal::shortValueExact,
            Integer.class, BigDecimal::intValueExact, Long.class, BigDecimal::longValueExact,
            Float.class, BigDecimal::floatValue, Double.class, BigDecimal::doubleValue,
            BigInteger.class, BigDecimal::toBigIntegerExact, BigDecimal.class, exact -> exact);

    @Override
    public byte[] encode(Object value) {
        StringBuilder out = new StringBuilder();
        write(out, value, 0);
        try {
            ByteBuffer bytes = StandardCharsets.UTF_8.newEncoder().encode(CharBuffer.wrap(out));
            return Arrays.copyOf(bytes.array(), bytes.limit());
        } catch (CharacterCodingException e) {
            throw new IllegalArgumentException("a text with half a surrogate pair has no form in UTF-8", e);
        }
    }

    @Override
    public Object decode(byte[] json, Type type) {
        return to(read(json), type);
    }

    // ---- writing -------------------------------------------------------------------------

    private static void write(StringBuilder out, Object value, int depth) {
        if (depth > DEPTH_MAX)
            throw new IllegalArgumentException("a value that is over " + DEPTH_MAX + " levels deep");
        if (value == null || value instanceof Boolean || value instanceof BigInteger || value instanceof BigDecimal
                || value instanceof Number number && Double.isFinite(number.doubleValue()))
            out.append(value);
        else if (value instanceof CharSequence || value instanceof Character || value instanceof Enum)
            quote(out, value instanceof Enum<?> e ? e.name() : value.toString());
        else if (value instanceof Optional<?> maybe)
            write(out, maybe.orElse(null), depth);
        else if (value instanceof Map<?, ?> map)
            join(out, "{", map.entrySet(), "}", member -> {
                quote(out, member.getKey().toString());
                write(out.append(':'), member.getValue(), depth + 1);
            });
        else if (value instanceof Record record)
            write(out, membersOf(record), depth);
        else if (value instanceof Collection<?> list)
            join(out, "[", list, "]", item -> write(out, item, depth + 1));
        else if (value.getClass().isArray())
            join(out, "[", IntStream.range(0, Array.getLength(value)).boxed().toList(), "]",
                    i -> write(out, Array.get(value, i), depth + 1));
        else
            throw new IllegalArgumentException("a " + value.getClass().getName() + " has no form in JSON; give a Codec");
    }

    private static <T> void join(StringBuilder out, String open, Collection<T> items, String close, Consumer<T> one) {
        String before = open;
        for (T item : items) {
            out.append(before);
            one.accept(item);
            before = ",";
        }
        out.append(items.isEmpty() ? open + close : close);
    }

    private static Map<String, Object> membersOf(Record record) {
        Map<String, Object> members = new LinkedHashMap<>();
        try {
            for (RecordComponent component : record.getClass().getRecordComponents()) {
                component.getAccessor().setAccessible(true);
                members.put(component.getName(), component.getAccessor().invoke(record));
            }
        } catch (ReflectiveOperationException e) {
            throw new IllegalArgumentException("a record that cannot be read: " + record.getClass().getName(), e);
        }
        return members;
    }

    private static void quote(StringBuilder out, String text) {
        out.append('"');
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c < 0x20)
                out.append(String.format("\\u%04x", (int) c));
            else
                out.append(c == '"' || c == '\\' ? "\\" : "").append(c);
        }
        out.append('"');
    }

    // ---- to a type -----------------------------------------------------------------------

    private static Object to(Object tree, Type type) {
        boolean generic = type instanceof ParameterizedType;
        Type plain = generic ? ((ParameterizedType) type).getRawType() : type;
        Type[] of = generic ? ((ParameterizedType) type).getActualTypeArguments() : new Type[] {Object.class, Object.class};
        Class<?> raw = plain instanceof Class<?> c ? MethodType.methodType(c).wrap().returnType() : Object.class;
        if (raw == Optional.class)
            return Optional.ofNullable(to(tree, of[0]));
        if (tree == null || raw == Void.class)
            return null;
        if (tree instanceof Number number && NUMBERS.containsKey(raw))
            return NUMBERS.get(raw).apply(new BigDecimal(number.toString()));
        if (raw.isEnum())
            for (Object constant : raw.getEnumConstants())
                if (((Enum<?>) constant).name().equals(tree))
                    return constant;
        if (tree instanceof String s && s.length() == 1 && raw == Character.class)
            return s.charAt(0);
        if (tree instanceof Map<?, ?> members && raw.isRecord())
            return record(members, raw);
        if (tree instanceof List<?> list && raw.isArray()) {
            Object array = Array.newInstance(raw.getComponentType(), list.size());
            for (int i = 0; i < list.size(); i++)
                Array.set(array, i, to(list.get(i), raw.getComponentType()));
            return array;
        }
        if (tree instanceof List<?> list && generic && raw.isAssignableFrom(ArrayList.class)) {
            List<Object> out = new ArrayList<>();
            list.forEach(item -> out.add(to(item, of[0])));
            return out;
        }
        if (tree instanceof Map<?, ?> map && generic && raw.isAssignableFrom(LinkedHashMap.class)) {
            Map<Object, Object> out = new LinkedHashMap<>();
            map.forEach((name, value) -> out.put(name, to(value, of[1])));
            return out;
        }
        if (raw.isInstance(tree))
            return tree;
        throw new IllegalArgumentException("JSON that is no " + type.getTypeName() + "; give a Codec");
    }

    private static Object record(Map<?, ?> members, Class<?> raw) {
        RecordComponent[] components = raw.getRecordComponents();
        Object[] values = new Object[components.length];
        for (int i = 0; i < components.length; i++) {
            values[i] = to(members.get(components[i].getName()), components[i].getGenericType());
            if (values[i] == null && components[i].getType().isPrimitive())
                throw new IllegalArgumentException("JSON without " + components[i].getName() + " of " + raw.getName());
        }
        try {
            Constructor<?> constructor = raw.getDeclaredConstructor(
                    Stream.of(components).map(RecordComponent::getType).toArray(Class<?>[]::new));
            constructor.setAccessible(true);
            return constructor.newInstance(values);
        } catch (InvocationTargetException e) {
            throw new IllegalArgumentException("JSON that " + raw.getName() + " refuses", e.getCause());
        } catch (ReflectiveOperationException e) {
            throw new IllegalArgumentException("a record that cannot be made: " + raw.getName(), e);
        }
    }

    // ---- reading -------------------------------------------------------------------------

    /** Reads a document: null, Boolean, Long or BigDecimal, String, List, Map. */
    static Object read(byte[] json) {
        Reader reader = new Reader(new String(json, StandardCharsets.UTF_8));
        Object value = reader.value(0);
        if (reader.peek() != 0)
            throw reader.bad();
        return value;
    }

    private static final class Reader {
        private final String text;
        private int at;

        Reader(String text) {
            this.text = text;
        }

        IllegalArgumentException bad() {
            return new IllegalArgumentException("no JSON, at " + at);
        }

        /** The next character that is no space; 0 at the end. */
        char peek() {
            while (at < text.length() && SPACES.indexOf(text.charAt(at)) >= 0)
                at++;
            return at < text.length() ? text.charAt(at) : 0;
        }

        boolean accept(char c) {
            boolean is = peek() == c;
            at += is ? 1 : 0;
            return is;
        }

        void expect(char c) {
            if (!accept(c))
                throw bad();
        }

        Object value(int depth) {
            if (depth > DEPTH_MAX)
                throw bad();
            if (accept('"'))
                return string();
            if (accept('[')) {
                List<Object> items = new ArrayList<>();
                each(']', () -> items.add(value(depth + 1)));
                return items;
            }
            if (accept('{')) {
                Map<String, Object> members = new LinkedHashMap<>();
                each('}', () -> {
                    expect('"');
                    String name = string();
                    expect(':');
                    members.put(name, value(depth + 1));
                });
                return members;
            }
            int from = at;
            while (at < text.length() && (SPACES + ",:]}").indexOf(text.charAt(at)) < 0)
                at++;
            String word = text.substring(from, at);
            return switch (word) {
                case "null" -> null;
                case "true", "false" -> word.equals("true");
                default -> number(word);
            };
        }

        private Number number(String word) {
            if (word.matches("-?(0|[1-9][0-9]{0,17})"))
                return Long.valueOf(word);
            if (!word.matches(NUMBER))
                throw bad();
            return new BigDecimal(word);
        }

        /** Items with commas between them, up to the bracket that closes. */
        private void each(char close, Runnable item) {
            if (accept(close))
                return;
            do
                item.run();
            while (accept(','));
            expect(close);
        }

        /** The rest of a string. */
        private String string() {
            StringBuilder out = new StringBuilder();
            for (; at < text.length(); at++) {
                char c = text.charAt(at);
                if (c == '"') {
                    at++;
                    return out.toString();
                }
                if (c < 0x20)
                    throw bad();
                out.append(c == '\\' ? escaped() : c);
            }
            throw bad();
        }

        private char escaped() {
            if (++at >= text.length())
                throw bad();
            char c = text.charAt(at);
            int known = "\"\\/bfnrt".indexOf(c);
            if (known >= 0)
                return "\"\\/\b\f\n\r\t".charAt(known);
            if (c != 'u' || at + 4 >= text.length())
                throw bad();
            at += 4;
            return (char) HexFormat.fromHexDigits(text, at - 3, at + 1); // refuses what is none
        }
    }
}
