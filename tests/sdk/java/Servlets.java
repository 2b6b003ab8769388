// SPDX-License-Identifier: Apache-2.0
import hapax.Hapax;
import hapax.Op;
import hapax.Options;
import hapax.servlet.OnceFilter;

import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;

import org.apache.catalina.Context;
import org.apache.catalina.startup.Tomcat;
import org.apache.tomcat.util.descriptor.web.FilterDef;
import org.apache.tomcat.util.descriptor.web.FilterMap;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.atomic.AtomicInteger;

/** Payments behind hapax.servlet.OnceFilter, in a Tomcat: Servlets FOLDER (test_java.py). */
class Servlets {
    static class Payments extends HttpServlet {
        private static final long serialVersionUID = 1;
        private final AtomicInteger charges = new AtomicInteger();

        @Override
        protected void doPost(HttpServletRequest request, HttpServletResponse response) throws IOException {
            String amount = new String(request.getInputStream().readAllBytes(), StandardCharsets.UTF_8).replaceAll("[^0-9]", "");
            if (amount.equals("13"))
                throw new IllegalStateException("thirteen");
            if (amount.equals("17")) {
                response.getWriter().print("x".repeat(17 << 20));
                return;
            }
            if (amount.equals("0")) {
                response.sendError(400, "an amount above 0 is needed");
                return;
            }
            response.setStatus(201);
            response.setContentType("text/plain;charset=UTF-8");
            response.setHeader("Location", "/payments/1");
            response.getWriter().println("charge " + ((Op) request.getAttribute(OnceFilter.OP)).key() + " ü (effect "
                    + charges.incrementAndGet() + ")");
        }
    }

    public static void main(String[] words) throws Exception {
        Hapax hapax = Hapax.connect();
        Tomcat tomcat = new Tomcat();
        tomcat.setBaseDir(words[0]);
        tomcat.setHostname("127.0.0.1");
        tomcat.setPort(0);
        tomcat.getConnector();
        Context context = tomcat.addContext("", words[0]);
        Tomcat.addServlet(context, "payments", new Payments()).addMapping("/payments");
        FilterDef filter = new FilterDef();
        filter.setFilterName("once");
        filter.setFilter(new OnceFilter(hapax, "payments", request -> Options.none().hold().policy("key", "required")));
        context.addFilterDef(filter);
        FilterMap map = new FilterMap();
        map.setFilterName("once");
        map.addURLPattern("/payments");
        context.addFilterMap(map);
        tomcat.start();
        System.out.println("payments: http://127.0.0.1:" + tomcat.getConnector().getLocalPort());
        tomcat.getServer().await();
    }
}
