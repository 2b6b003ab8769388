// SPDX-License-Identifier: Apache-2.0
import hapax.jdbc.Pg;

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.List;
import java.util.Map;

/** Completes an operation in a transaction: Complete URL TOKEN (test_java.py). Prints "committed", or why not. */
class Complete {
    public static void main(String[] words) throws SQLException {
        try (Connection connection = DriverManager.getConnection(words[0])) {
            connection.setAutoCommit(false);
            try (Statement insert = connection.createStatement()) {
                insert.execute("INSERT INTO payments (amount) VALUES (1)");
            }
            Pg.complete(connection, words[1], 201, Map.of("Location", List.of("/payments/1")), new byte[] {0, -1, ' ', 'r'});
            connection.commit();
            System.out.println("committed");
        } catch (SQLException e) {
            System.out.println(e.getSQLState());
        } catch (IllegalArgumentException e) {
            System.out.println(e.getMessage());
        }
    }
}
