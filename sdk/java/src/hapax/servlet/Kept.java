// SPDX-License-Identifier: Apache-2.0
package hapax.servlet;

import jakarta.servlet.ReadListener;
import jakarta.servlet.ServletInputStream;
import jakarta.servlet.ServletOutputStream;
import jakarta.servlet.WriteListener;
import jakarta.servlet.http.Cookie;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletRequestWrapper;
import jakarta.servlet.http.HttpServletResponse;
import jakarta.servlet.http.HttpServletResponseWrapper;

import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.io.PrintWriter;
import java.nio.charset.Charset;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Locale;

/** A response in memory. Nothing of it reaches the client but cookies, which are in no stored response. */
final class Kept extends HttpServletResponseWrapper {
    private static final int BODY_MAX = 16 << 20;
    private final ByteArrayOutputStream body = new ByteArrayOutputStream();
    private final List<String[]> headers = new ArrayList<>();
    private int status = SC_OK;
    private Charset charset;
    private PrintWriter writer;
    private boolean over; // a part was refused

    /** A part of the response was refused, so the rest is no response. */
    boolean isOver() {
        if (writer != null)
            writer.flush();
        return over;
    }

    Kept(HttpServletResponse outer) {
        super(outer);
    }

    byte[] body() {
        if (writer != null)
            writer.flush();
        return body.toByteArray();
    }

    List<String[]> headers() {
        return headers;
    }

    // ---- status and headers ----

    @Override
    public void setStatus(int code) {
        status = code;
    }

    @Override
    public int getStatus() {
        return status;
    }

    @Override
    public void sendError(int code) throws IOException {
        sendError(code, null);
    }

    @Override
    public void sendError(int code, String message) throws IOException {
        resetBuffer();
        status = code;
        if (message != null) {
            setHeader("Content-Type", "text/plain;charset=UTF-8");
            body.writeBytes(message.getBytes(java.nio.charset.StandardCharsets.UTF_8));
        }
    }

    @Override
    public void sendRedirect(String location) throws IOException {
        resetBuffer();
        status = SC_FOUND;
        setHeader("Location", location);
    }

    @Override
    public void addHeader(String name, String value) {
        headers.add(new String[] {name, value});
    }

    @Override
    public void setHeader(String name, String value) {
        headers.removeIf(pair -> pair[0].equalsIgnoreCase(name));
        if (value != null)
            addHeader(name, value);
    }

    @Override
    public void addIntHeader(String name, int value) {
        addHeader(name, Integer.toString(value));
    }

    @Override
    public void setIntHeader(String name, int value) {
        setHeader(name, Integer.toString(value));
    }

    @Override
    public void addDateHeader(String name, long ms) {
        addHeader(name, date(ms));
    }

    @Override
    public void setDateHeader(String name, long ms) {
        setHeader(name, date(ms));
    }

    private static String date(long ms) {
        return DateTimeFormatter.RFC_1123_DATE_TIME.format(Instant.ofEpochMilli(ms).atOffset(ZoneOffset.UTC));
    }

    @Override
    public void addCookie(Cookie cookie) {
        super.addCookie(cookie); // cookies are the client's own, and are in no stored response
    }

    @Override
    public boolean containsHeader(String name) {
        return getHeader(name) != null;
    }

    @Override
    public String getHeader(String name) {
        return getHeaders(name).stream().findFirst().orElse(null);
    }

    @Override
    public Collection<String> getHeaders(String name) {
        return headers.stream().filter(pair -> pair[0].equalsIgnoreCase(name)).map(pair -> pair[1]).toList();
    }

    @Override
    public Collection<String> getHeaderNames() {
        return headers.stream().map(pair -> pair[0]).distinct().toList();
    }

    @Override
    public void setContentType(String type) {
        setHeader("Content-Type", type);
    }

    @Override
    public String getContentType() {
        return getHeader("Content-Type");
    }

    @Override
    public void setCharacterEncoding(String name) {
        charset = Charset.forName(name);
        String type = getContentType();
        if (type != null && !type.toLowerCase(Locale.ROOT).contains("charset="))
            setContentType(type + ";charset=" + name);
    }

    @Override
    public String getCharacterEncoding() {
        String type = getContentType();
        int at = type == null ? -1 : type.toLowerCase(Locale.ROOT).indexOf("charset=");
        if (charset == null && at >= 0)
            return type.substring(at + "charset=".length()).replace("\"", "").split(";")[0].strip();
        return charset == null ? "ISO-8859-1" : charset.name(); // as the specification has it
    }

    @Override
    public void setContentLength(int length) {
        // the filter sets it
    }

    @Override
    public void setContentLengthLong(long length) {
        // the filter sets it
    }

    // ---- the body ----

    private void take(byte[] bytes, int from, int count) throws IOException {
        if (body.size() + count > BODY_MAX)
            over = true;
        if (over)
            throw new IOException("the response is over " + BODY_MAX + " bytes, which cannot be kept");
        body.write(bytes, from, count);
    }

    @Override
    public ServletOutputStream getOutputStream() {
        return new ServletOutputStream() {
            @Override
            public void write(int b) throws IOException {
                take(new byte[] {(byte) b}, 0, 1);
            }

            @Override
            public void write(byte[] bytes, int from, int count) throws IOException {
                take(bytes, from, count);
            }

            @Override
            public boolean isReady() {
                return true;
            }

            @Override
            public void setWriteListener(WriteListener listener) {
                throw new IllegalStateException("a response that is kept is not asynchronous");
            }
        };
    }

    @Override
    public PrintWriter getWriter() {
        if (writer == null)
            writer = new PrintWriter(new OutputStreamWriter(getOutputStream(), Charset.forName(getCharacterEncoding())));
        return writer;
    }

    @Override
    public void flushBuffer() {
        // it is sent once it is stored
    }

    @Override
    public boolean isCommitted() {
        return false;
    }

    @Override
    public void resetBuffer() {
        if (writer != null)
            writer.flush();
        body.reset();
    }

    @Override
    public void reset() {
        resetBuffer();
        headers.clear();
        status = SC_OK;
    }

    /** A request whose body was read, and is read again. */
    static final class Again extends HttpServletRequestWrapper {
        private final ByteArrayInputStream bytes;

        Again(HttpServletRequest outer, byte[] body) {
            super(outer);
            bytes = new ByteArrayInputStream(body);
        }

        @Override
        public ServletInputStream getInputStream() {
            return new ServletInputStream() {
                @Override
                public int read() {
                    return bytes.read();
                }

                @Override
                public int read(byte[] into, int from, int count) {
                    return bytes.read(into, from, count);
                }

                @Override
                public boolean isFinished() {
                    return bytes.available() == 0;
                }

                @Override
                public boolean isReady() {
                    return true;
                }

                @Override
                public void setReadListener(ReadListener listener) {
                    throw new IllegalStateException("a request that is kept is not asynchronous");
                }
            };
        }

        @Override
        public BufferedReader getReader() throws IOException {
            String name = getCharacterEncoding();
            return new BufferedReader(new InputStreamReader(getInputStream(), name == null ? "ISO-8859-1" : name));
        }
    }
}
