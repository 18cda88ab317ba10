import java.net.URI;
import java.util.Optional;
import java.util.Set;

/** Where the service under test is, by the environment that every suite's program gets. */
final class Service {
    static final String HUB = System.getenv("TIDEGATE_HUB");
    static final String TRANSPORT = System.getenv("TIDEGATE_TRANSPORT");
    static final String CONNECTION_STRING = System.getenv("TIDEGATE_CONNECTION_STRING");

    /** Names of the cases to run; empty for all. */
    static final Set<String> CASES =
            variable("TIDEGATE_CASES").map(names -> Set.of(names.split("\n"))).orElse(Set.of());

    private Service() {}

    /** A variable of the environment that some runs have. */
    static Optional<String> variable(String name) {
        return Optional.ofNullable(System.getenv(name)).filter(value -> !value.isEmpty());
    }

    /** The value of a part of the connection string. */
    static String part(String name) {
        for (String part : CONNECTION_STRING.split(";")) {
            if (part.startsWith(name + "=")) {
                return part.substring(name.length() + 1);
            }
        }
        throw new IllegalArgumentException("The connection string has no " + name + ".");
    }

    /** Where the connection string leads to. */
    static URI endpoint() {
        return URI.create(part("Endpoint"));
    }
}
