// SPDX-License-Identifier: Apache-2.0
package hapax.jdbc;

import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.util.List;
import java.util.Map;

/**
 * Completes an operation in the PostgreSQL transaction that has its rows: rows and outcome are committed together, or
 * neither is. It needs no door. Something in front of the program claims the operation and hands on a token: {@code hapax
 * serve} or {@code hapax consume} with {@code --pass-token on} ({@link hapax.http.Attempt}), or a handler under the policy
 * pass_token ({@link hapax.Op#token}).
 *
 * With Spring: within {@code @Transactional}, the connection of {@code DataSourceUtils.getConnection(dataSource)}.
 */
public final class Pg {
    /**
     * The SQLSTATE of a lost claim: another attempt has it, or has completed the operation. Or this token has completed it
     * already, in another transaction. Let the transaction roll back: the gate answers with what was committed.
     */
    public static final String LOST = "HX001";

    private Pg() {
    }

    /**
     * Completes the operation of this token, in the transaction of this connection, whose auto-commit is off. The outcome
     * is the answer to every repeat once the transaction has committed. A status of 0 is none.
     *
     * @throws SQLException with the SQLSTATE {@link #LOST} where the claim is lost; the driver's own otherwise
     */
    public static void complete(Connection connection, String token, int status, Map<String, List<String>> headers, byte[] body)
            throws SQLException {
        end(connection, "SELECT FROM hapax.complete(?, ?, ?, ?)", token, status, headers, body, null);
    }

    /**
     * Ends the attempt of this token as failed: a retry runs. Roll your rows back to a savepoint first, otherwise they are
     * committed with the failure. ran false: surely nothing happened, and the attempt does not count.
     */
    public static void fail(Connection connection, String token, boolean ran, int status, Map<String, List<String>> headers,
            byte[] body) throws SQLException {
        end(connection, "SELECT FROM hapax.fail(?, status => ?, headers => ?, body => ?, ran => ?)", token, status, headers,
                body, ran);
    }

    private static void end(Connection connection, String ask, String token, int status, Map<String, List<String>> headers,
            byte[] body, Boolean ran) throws SQLException {
        if (token == null || token.isEmpty())
            throw new IllegalArgumentException("there is no token: the request has no key, or --pass-token is off");
        if (connection.getAutoCommit())
            throw new IllegalStateException("the connection is in auto-commit: rows and outcome would be two transactions");
        try (PreparedStatement statement = connection.prepareStatement(ask)) {
            statement.setString(1, token);
            statement.setInt(2, status);
            statement.setBytes(3, lines(headers));
            statement.setBytes(4, body == null ? new byte[0] : body); // NULL would say that the body was not kept
            if (ran != null)
                statement.setBoolean(5, ran);
            statement.execute();
        }
    }

    private static byte[] lines(Map<String, List<String>> headers) {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        if (headers != null)
            headers.forEach((name, values) -> values.forEach(
                    value -> out.writeBytes((name + ": " + value + "\r\n").getBytes(StandardCharsets.ISO_8859_1))));
        return out.toByteArray();
    }
}
