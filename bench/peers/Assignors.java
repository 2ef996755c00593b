// Times Kafka's own assignors: `java -cp 'KAFKA/*' Assignors.java PARTITIONS MEMBERS ROUNDS`. One JSON line each.
//
// cooperative-sticky runs in a client (the leader of the group), uniform in the broker (KIP-848). Each round starts from
// nothing: cold, then one member leaves, then it comes back. The medians of ROUNDS are printed, after as many to warm up.

import java.util.*;
import java.util.stream.*;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.common.*;
import org.apache.kafka.coordinator.group.api.assignor.*;
import org.apache.kafka.coordinator.group.api.assignor.GroupAssignment;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

public class Assignors {
    interface Peer {
        void clear();
        void assign(Set<String> members);
        Map<String, Set<Integer>> assignment();
    }

    static class Cooperative implements Peer {
        final Cluster cluster;
        Map<String, List<TopicPartition>> owned = new HashMap<>();

        Cooperative(int partitions) {
            Node node = new Node(0, "h", 1);
            List<PartitionInfo> infos = IntStream.range(0, partitions)
                .mapToObj(p -> new PartitionInfo("t", p, node, new Node[0], new Node[0])).toList();
            cluster = new Cluster("c", List.of(node), infos, Set.of(), Set.of());
        }

        public void clear() { owned = new HashMap<>(); }

        public void assign(Set<String> members) {
            Map<String, Subscription> all = new HashMap<>();
            for (String m : members)
                all.put(m, new Subscription(List.of("t"), null, owned.getOrDefault(m, List.of())));
            Map<String, List<TopicPartition>> found = new HashMap<>();
            new CooperativeStickyAssignor().assign(cluster, new GroupSubscription(all)).groupAssignment()
                .forEach((m, a) -> found.put(m, a.partitions()));
            owned = found;
        }

        public Map<String, Set<Integer>> assignment() {
            Map<String, Set<Integer>> found = new HashMap<>();
            owned.forEach((m, its) -> found.put(m, its.stream().map(TopicPartition::partition).collect(Collectors.toSet())));
            return found;
        }
    }

    static class Uniform implements Peer {
        final Uuid topic = new Uuid(1, 1);
        final SubscribedTopicDescriber describer;
        Map<String, MemberAssignment> owned = new HashMap<>();
        Map<Uuid, Map<Integer, String>> inverted = new HashMap<>();

        Uniform(int partitions) {
            describer = new SubscribedTopicDescriber() {
                public int numPartitions(Uuid id) { return partitions; }
                public Set<String> racksForPartition(Uuid id, int p) { return Set.of(); }
            };
        }

        public void clear() { owned = new HashMap<>(); inverted = new HashMap<>(); }

        public void assign(Set<String> members) {
            Map<String, MemberSubscriptionAndAssignmentImpl> all = new HashMap<>();
            for (String m : members) {
                MemberAssignment its = owned.get(m);
                all.put(m, new MemberSubscriptionAndAssignmentImpl(Optional.empty(), Optional.empty(), Set.of(topic),
                    its == null ? Assignment.EMPTY : new Assignment(its.partitions())));
            }
            owned = new UniformAssignor()
                .assign(new GroupSpecImpl(all, SubscriptionType.HOMOGENEOUS, inverted), describer).members();
        }

        /** The broker keeps this beside the assignment, so it is not timed. */
        void invert() {
            Map<Integer, String> by = new HashMap<>();
            owned.forEach((m, a) -> a.partitions().getOrDefault(topic, Set.of()).forEach(p -> by.put(p, m)));
            inverted = new HashMap<>(Map.of(topic, by));
        }

        public Map<String, Set<Integer>> assignment() {
            invert();
            Map<String, Set<Integer>> found = new HashMap<>();
            owned.forEach((m, a) -> found.put(m, a.partitions().getOrDefault(topic, Set.of())));
            return found;
        }
    }

    public static void main(String[] args) {
        int partitions = Integer.parseInt(args[0]), count = Integer.parseInt(args[1]), rounds = Integer.parseInt(args[2]);
        Set<String> members = IntStream.range(0, count).mapToObj(i -> String.format("c%04d", i)).collect(Collectors.toCollection(TreeSet::new));
        Set<String> fewer = new TreeSet<>(members);
        fewer.remove("c0003");
        measure("cooperative-sticky", new Cooperative(partitions), members, fewer, rounds);
        measure("uniform", new Uniform(partitions), members, fewer, rounds);
    }

    static void measure(String name, Peer peer, Set<String> members, Set<String> fewer, int rounds) {
        double[][] times = new double[3][rounds];
        int kept = 0, off = 0;
        for (int round = 0; round < 2 * rounds; round++) {
            peer.clear();
            int step = 0;
            for (Set<String> now : List.of(members, fewer, members)) {
                Map<String, Set<Integer>> before = peer.assignment();
                long start = System.nanoTime();
                peer.assign(now);
                times[step][round % rounds] = (System.nanoTime() - start) / 1e6;
                if (step == 1) {
                    Map<String, Set<Integer>> after = peer.assignment();
                    kept = now.stream().mapToInt(m -> (int) after.get(m).stream().filter(before.get(m)::contains).count()).sum();
                    off = after.values().stream().mapToInt(Set::size).max().getAsInt() - after.values().stream().mapToInt(Set::size).min().getAsInt();
                }
                step++;
            }
        }
        for (double[] each : times) Arrays.sort(each);
        System.out.printf("{\"peer\":\"%s\",\"cold_ms\":%.3f,\"leave_ms\":%.3f,\"join_ms\":%.3f,\"kept\":%d,\"difference\":%d}%n",
            name, times[0][rounds / 2], times[1][rounds / 2], times[2][rounds / 2], kept, off);
    }
}
