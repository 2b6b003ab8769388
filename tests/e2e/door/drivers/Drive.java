// Runs the page's snippet for JDBC: Drive URL (test_drivers.py).
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

class Drive {
    interface Call {
        Payments.Paid on(Connection conn) throws SQLException;
    }

    static Connection held;

    static String attempt(Connection conn, Call call) {
        try {
            Payments.Paid paid = call.on(conn);
            return "ok " + paid.verdict() + " " + (paid.body() == null ? "" : new String(paid.body()));
        } catch (SQLException e) {
            return ("error " + e.getSQLState() + " " + e.getMessage()).replace('\n', ' ');
        }
    }

    static String once(String url, Call call) throws SQLException {
        try (Connection conn = DriverManager.getConnection(url)) {
            return attempt(conn, call);
        }
    }

    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null; ) {
            String[] words = line.split(" ");
            if (words[0].equals("pay")) {
                if (held == null)
                    held = DriverManager.getConnection(args[0]);
                String answer = attempt(held, c -> Payments.pay(c, words[1], Integer.parseInt(words[2])));
                if (answer.startsWith("error")) {
                    held.close();
                    held = null;
                }
                System.out.println(answer);
            } else if (words[0].equals("storm")) {
                ExecutorService pool = Executors.newCachedThreadPool();
                List<Future<String>> answers = new ArrayList<>();
                for (int i = 0; i < Integer.parseInt(words[1]); i++)
                    answers.add(pool.submit(() -> once(args[0],
                            c -> Payments.payAgain(c, words[2], Integer.parseInt(words[3])))));
                for (Future<String> answer : answers)
                    System.out.println(answer.get());
                pool.shutdown();
            } else {
                System.out.println(once(args[0], c -> {
                    try (PreparedStatement complete = c.prepareStatement("SELECT FROM hapax.complete(?, 201)")) {
                        complete.setString(1, words[1]);
                        complete.execute();
                    }
                    return new Payments.Paid("", null);
                }));
            }
        }
    }
}
