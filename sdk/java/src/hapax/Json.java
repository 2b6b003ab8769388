// SPDX-License-Identifier: Apache-2.0
package hapax;

import java.lang.reflect.Array;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.RecordComponent;
import java.lang.reflect.Type;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * JSON as far as frames and results need it: null, booleans, numbers, texts, lists, maps with keys of text, enums,
 * {@link Optional} and records. What else a program keeps it gives a {@link Codec} for.
 */
final class Json implements Codec {
    private static final int DEPTH_MAX = 64;

    @Override
    public byte[] encode(Object value) {
        StringBuilder out = new StringBuilder();
        write(out, value, 0);
        try {
            ByteBuffer bytes = StandardCharsets.UTF_8.newEncoder().encode(CharBuffer.wrap(out));
            byte[] copy = new byte[bytes.remaining()];
            bytes.get(copy);
            return copy;
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
        if (value instanceof Optional<?> maybe)
            value = maybe.orElse(null);
        if (value == null || value instanceof Boolean || value instanceof Integer || value instanceof Long
                || value instanceof Short || value instanceof Byte || value instanceof java.math.BigInteger
                || value instanceof BigDecimal)
            out.append(value);
        else if (value instanceof Number number && Double.isFinite(number.doubleValue()))
            out.append(number);
        else if (value instanceof CharSequence || value instanceof Character || value instanceof Enum)
            quote(out, value instanceof Enum<?> e ? e.name() : value.toString());
        else if (value instanceof Map<?, ?> map)
            writeMembers(out, map, depth);
        else if (value instanceof Record record)
            writeMembers(out, membersOf(record), depth);
        else if (value instanceof Collection<?> list)
            writeList(out, list, depth);
        else if (value.getClass().isArray())
            writeList(out, listOf(value), depth);
        else
            throw new IllegalArgumentException("a " + value.getClass().getName() + " has no form in JSON; give a Codec");
    }

    private static void writeList(StringBuilder out, Collection<?> list, int depth) {
        String before = "[";
        for (Object item : list) {
            out.append(before);
            write(out, item, depth + 1);
            before = ",";
        }
        out.append(list.isEmpty() ? "[]" : "]");
    }

    private static void writeMembers(StringBuilder out, Map<?, ?> members, int depth) {
        String before = "{";
        for (Map.Entry<?, ?> member : members.entrySet()) {
            out.append(before);
            quote(out, member.getKey().toString());
            out.append(':');
            write(out, member.getValue(), depth + 1);
            before = ",";
        }
        out.append(members.isEmpty() ? "{}" : "}");
    }

    private static List<Object> listOf(Object array) {
        List<Object> list = new ArrayList<>();
        for (int i = 0; i < Array.getLength(array); i++)
            list.add(Array.get(array, i));
        return list;
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
            if (c == '"' || c == '\\')
                out.append('\\').append(c);
            else if (c < 0x20)
                out.append(String.format("\\u%04x", (int) c));
            else
                out.append(c);
        }
        out.append('"');
    }

    // ---- to a type -----------------------------------------------------------------------

    private static Object to(Object tree, Type type) {
        Class<?> raw = type instanceof ParameterizedType p ? (Class<?>) p.getRawType()
                : type instanceof Class<?> c ? c : Object.class;
        Type[] of = type instanceof ParameterizedType p ? p.getActualTypeArguments() : new Type[] {Object.class, Object.class};
        if (raw == Optional.class)
            return Optional.ofNullable(to(tree, of[0]));
        if (tree == null || raw == Object.class || raw == Void.class || raw == void.class)
            return raw == Void.class || raw == void.class ? null : tree;
        if (raw.isPrimitive() || Number.class.isAssignableFrom(raw) || raw == Boolean.class || raw == Character.class)
            return scalar(tree, raw);
        if (raw.isEnum())
            for (Object constant : raw.getEnumConstants())
                if (((Enum<?>) constant).name().equals(tree))
                    return constant;
        if (raw.isRecord() && tree instanceof Map<?, ?> members)
            return record(members, raw);
        if (raw.isArray() && tree instanceof List<?> list) {
            Object array = Array.newInstance(raw.getComponentType(), list.size());
            for (int i = 0; i < list.size(); i++)
                Array.set(array, i, to(list.get(i), raw.getComponentType()));
            return array;
        }
        if (tree instanceof List<?> list && raw.isAssignableFrom(ArrayList.class)) {
            List<Object> out = new ArrayList<>();
            list.forEach(item -> out.add(to(item, of[0])));
            return out;
        }
        if (tree instanceof Map<?, ?> map && raw.isAssignableFrom(LinkedHashMap.class)) {
            Map<Object, Object> out = new LinkedHashMap<>();
            map.forEach((name, value) -> out.put(name, to(value, of[1])));
            return out;
        }
        if (raw.isInstance(tree))
            return tree;
        throw new IllegalArgumentException("JSON that is no " + type.getTypeName() + "; give a Codec");
    }

    private static Object scalar(Object tree, Class<?> raw) {
        if (tree instanceof Number n) {
            BigDecimal exact = new BigDecimal(n.toString());
            if (raw == int.class || raw == Integer.class) return exact.intValueExact();
            if (raw == long.class || raw == Long.class) return exact.longValueExact();
            if (raw == short.class || raw == Short.class) return exact.shortValueExact();
            if (raw == byte.class || raw == Byte.class) return exact.byteValueExact();
            if (raw == double.class || raw == Double.class) return exact.doubleValue();
            if (raw == float.class || raw == Float.class) return exact.floatValue();
            if (raw == java.math.BigInteger.class) return exact.toBigIntegerExact();
            if (raw == BigDecimal.class) return exact;
            if (raw == Number.class) return n;
        }
        if (tree instanceof Boolean && (raw == boolean.class || raw == Boolean.class))
            return tree;
        if (tree instanceof String s && s.length() == 1 && (raw == char.class || raw == Character.class))
            return s.charAt(0);
        throw new IllegalArgumentException("JSON that is no " + raw.getName());
    }

    private static Object record(Map<?, ?> members, Class<?> raw) {
        RecordComponent[] components = raw.getRecordComponents();
        Class<?>[] types = new Class<?>[components.length];
        Object[] values = new Object[components.length];
        for (int i = 0; i < components.length; i++) {
            types[i] = components[i].getType();
            values[i] = to(members.get(components[i].getName()), components[i].getGenericType());
            if (values[i] == null && types[i].isPrimitive())
                throw new IllegalArgumentException("JSON without " + components[i].getName() + " of " + raw.getName());
        }
        try {
            var constructor = raw.getDeclaredConstructor(types);
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
            while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0)
                at++;
            return at < text.length() ? text.charAt(at) : 0;
        }

        boolean accept(char c) {
            if (peek() != c)
                return false;
            at++;
            return true;
        }

        void expect(char c) {
            if (!accept(c))
                throw bad();
        }

        Object value(int depth) {
            if (depth > DEPTH_MAX)
                throw bad();
            switch (peek()) {
                case '{':
                    return members(depth);
                case '[':
                    return items(depth);
                case '"':
                    return string();
                default:
                    int from = at;
                    while (at < text.length() && " \t\r\n,:]}".indexOf(text.charAt(at)) < 0)
                        at++;
                    return word(text.substring(from, at));
            }
        }

        private Object word(String word) {
            switch (word) {
                case "null": return null;
                case "true": return true;
                case "false": return false;
                default:
            }
            if (!word.matches("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][-+]?[0-9]+)?"))
                throw bad();
            return word.matches("-?[0-9]{1,18}") ? (Object) Long.valueOf(word) : new BigDecimal(word);
        }

        private Map<String, Object> members(int depth) {
            Map<String, Object> members = new LinkedHashMap<>();
            expect('{');
            if (accept('}'))
                return members;
            do {
                if (peek() != '"')
                    throw bad();
                String name = string();
                expect(':');
                members.put(name, value(depth + 1));
            } while (accept(','));
            expect('}');
            return members;
        }

        private List<Object> items(int depth) {
            List<Object> items = new ArrayList<>();
            expect('[');
            if (accept(']'))
                return items;
            do
                items.add(value(depth + 1));
            while (accept(','));
            expect(']');
            return items;
        }

        private String string() {
            StringBuilder out = new StringBuilder();
            for (at++; at < text.length(); at++) {
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
            if (c != 'u' || at + 4 >= text.length() || !text.substring(at + 1, at + 5).matches("[0-9a-fA-F]{4}"))
                throw bad();
            at += 4;
            return (char) Integer.parseInt(text.substring(at - 3, at + 1), 16);
        }
    }
}
