// Hostfiles and host options of the command line. Expected world infos come from DeepSpeed's launcher.
#include "launcher/hosts.h"

#include <gtest/gtest.h>

#include "tests/scratch.h"

namespace cleave::launcher {
namespace {

Hosts parsed(const std::string& text) { return parse_hostfile(text, "hosts"); }
std::string refused(const std::string& text) {
  return error_text(Exit::usage, [&] { parsed(text); });
}

const Hosts kThree = {{"a", {0, 1, 2, 3}}, {"b", {0, 1}}, {"c", {0, 1, 2}}};
std::string unselected(const HostFilter& filter) {
  return error_text(Exit::usage, [&] { select_hosts(kThree, filter); });
}

TEST(Hostfile, HasOneHostPerLineWithItsSlots) {
  EXPECT_EQ(parsed("# ours\n\n b slots=2 max_slots=9\r\n\ta\tslots=1\n"), (Hosts{{"b", {0, 1}}, {"a", {0}}}));
  EXPECT_EQ(parsed("w-[08-10] slots=1\nx slots=1"),
            (Hosts{{"w-08", {0}}, {"w-09", {0}}, {"w-10", {0}}, {"x", {0}}}));
}

TEST(Hostfile, RejectsALineWithItsNumber) {
  EXPECT_EQ(refused("a slots=1\n\na slots=2\n"), "hosts:3: duplicate host a, also in line 1");
  EXPECT_EQ(refused("w-2 slots=1\nw-[1-3] slots=2\n"), "hosts:2: duplicate host w-2, also in line 1");
  EXPECT_EQ(refused("a\n"),
            "hosts:1: 'a' has no number of slots; expected NAME slots=N, such as worker-0 slots=4");
  for (const char* slots : {"0", "-1", "x", "", "4x", "99999999999", "5000"})
    EXPECT_NE(refused("a slots=" + std::string(slots))
                  .find("hosts:1: 'a' has an invalid number of slots (got 'slots="),
              std::string::npos)
        << slots;
  EXPECT_EQ(refused("# nothing\n"),
            "hosts: contains no host; expected NAME slots=N, such as worker-0 slots=4, one per line");
  EXPECT_EQ(refused("w-[3-1] slots=1"),
            "hosts:1: malformed range (got 'w-[3-1]', expected a form such as worker-[01-04])");
}

TEST(Hostfile, RejectsNamesThatAreUnsafeInAShellOrOptionParser) {
  for (const char* name : {"-oProxyCommand=touch", "a;b", "$(touch,x)", "a`b`", "me@host", "a:22", "../x",
                           "a,b", "a'b", "a\\b", "[::1]", ".a"})
    EXPECT_NE(refused(std::string(name) + " slots=1").find("hosts:1: "), std::string::npos) << name;
  EXPECT_TRUE(is_host_name("node-1.example_2.com"));
  EXPECT_FALSE(is_host_name(""));
  EXPECT_FALSE(is_host_name("a\n"));
  EXPECT_FALSE(is_host_name(std::string(254, 'a')));
}

TEST(Hosts, AreIncludedAndExcludedInHostfileOrder) {
  EXPECT_EQ(select_hosts(kThree, {.include = "c:2,0,2@a"}), (Hosts{{"a", {0, 1, 2, 3}}, {"c", {0, 2}}}));
  EXPECT_EQ(select_hosts(kThree, {.exclude = "b@a:1,2"}), (Hosts{{"a", {0, 3}}, {"c", {0, 1, 2}}}));
  EXPECT_EQ(select_hosts(kThree, {.exclude = "b:0@b:1"}), (Hosts{kThree[0], kThree[2]}));
  EXPECT_EQ(select_hosts(kThree, {.num_nodes = 2, .num_gpus = 2}), (Hosts{{"a", {0, 1}}, {"b", {0, 1}}}));
  EXPECT_EQ(select_hosts({{"localhost", {2, 5}}}, {.num_gpus = 1}), (Hosts{{"localhost", {2}}}));
  EXPECT_EQ(select_hosts(kThree, {}), kThree);
}

TEST(Hosts, ThatAreUnknownAreRejected) {
  EXPECT_EQ(unselected({.include = "d"}), "--include d: unknown host d (expected one of a, b, c)");
  EXPECT_EQ(unselected({.include = "b:2"}), "--include b:2: b has no slot 2 (expected one of 0, 1)");
  EXPECT_EQ(unselected({.exclude = "b:7"}), "--exclude b:7: b has no slot 7 (expected one of 0, 1)");
  EXPECT_EQ(unselected({.exclude = "a@b@c"}), "--exclude a@b@c: leaves no slots");
  EXPECT_NE(
      unselected({.include = "a:x"}).find("'x' is not a slot number (expected HOST[:SLOT,...][@HOST...])"),
      std::string::npos);
  EXPECT_NE(unselected({.include = "a@"}).find("is not a host (expected HOST[:SLOT,...][@HOST...])"),
            std::string::npos);
  EXPECT_EQ(unselected({.num_nodes = 4}), "--num_nodes: too large (got 4); there are only 3 hosts");
  EXPECT_EQ(unselected({.num_gpus = 3}), "--num_gpus: too large (got 3, but b has only 2 slots)");
  EXPECT_NE(unselected({.include = "a", .exclude = "b"}).find("--include: conflicts with --exclude"),
            std::string::npos);
  EXPECT_NE(unselected({.include = "a", .num_gpus = 1}).find("give one kind"), std::string::npos);
  EXPECT_NE(unselected({.num_gpus = 0}).find("at least 1"), std::string::npos);
}

TEST(Hosts, NeedTheSlotsOfAFilter) {
  EXPECT_EQ(slots_named({}), 0);
  EXPECT_EQ(slots_named({.include = "localhost"}), 0);
  EXPECT_EQ(slots_named({.include = "localhost:0,1"}), 2);
  EXPECT_EQ(slots_named({.exclude = "a:1@b:6,2"}), 7);
  EXPECT_EQ(slots_named({.include = "localhost:999999999"}), 4096);
  EXPECT_THROW(slots_named({.include = "localhost:x"}), Error);
}

TEST(WorldInfo, HasTheFormatOfDeepSpeed) {
  // python3 -c 'import base64, json; print(base64.urlsafe_b64encode(json.dumps({"a": [0, 1], "b-2":
  // [3]}).encode()).decode())'
  EXPECT_EQ(decode_world_info("eyJhIjogWzAsIDFdLCAiYi0yIjogWzNdfQ=="), (Hosts{{"a", {0, 1}}, {"b-2", {3}}}));
  EXPECT_EQ(decode_world_info("eyJhIjogWzAsIDEsIDIsIDNdLCAiYiI6IFswLCAxXSwgImMiOiBbMCwgMSwgMl19"), kThree);
  EXPECT_EQ(decode_world_info("eyJ4IjogWzddfQ=="), (Hosts{{"x", {7}}}));
  for (const char* text : {"", "%%", "e30=", "eyJhIjogW119", "eyItYSI6IFswXX0="})
    EXPECT_NE(error_text(Exit::usage, [&] { decode_world_info(text); }).find("--world_info"),
              std::string::npos)
        << text;
}

}  // namespace
}  // namespace cleave::launcher
