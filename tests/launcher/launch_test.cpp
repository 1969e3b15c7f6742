// The launcher with real processes: shell one-liners as ranks, and this program as ranks that communicate.
#include "launcher/launch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "comm/rendezvous/rendezvous.h"
#include "comm/rendezvous/socket.h"
#include "core/cores.h"
#include "launcher/children.h"
#include "launcher/discovery.h"
#include "launcher/memory_policy.h"
#include "launcher/placed_rank.h"
#include "launcher/rank_ports.h"
#include "tests/launcher/machines.h"
#include "tests/scratch.h"

namespace cleave::launcher {
namespace {

using namespace std::chrono_literals;

struct Ran {
  LaunchResult result;
  std::vector<std::string> lines, errors;
  std::string all() const {
    std::string text;
    for (const auto& l : lines) text += l;
    return text;
  }
};

LaunchOptions shell(int ranks, const std::string& script) {
  LaunchOptions options;
  options.ranks = ranks;
  options.command = {"sh", "-c", script};
  options.leave_grace = 300ms;
  options.term_grace = 300ms;
  return options;
}

Ran run(const LaunchOptions& options) {
  Ran ran;
  ran.result = launch_local(options, {.output = [&](std::string_view line, bool is_error) {
                              (is_error ? ran.errors : ran.lines).emplace_back(line);
                            }});
  std::sort(ran.lines.begin(), ran.lines.end());
  return ran;
}

// Number of processes with `mark` in their environment or command line; every test marks its ranks.
int processes_with(const std::string& mark) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string pid = entry.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos || pid == std::to_string(getpid())) continue;
    std::ostringstream text;
    text << std::ifstream(entry.path() / "environ").rdbuf();
    count += text.str().find(mark) != std::string::npos;
  }
  return count;
}

template <class Done>
bool within(std::chrono::milliseconds limit, Done done) {
  const auto until = comm::Clock::now() + limit;
  while (comm::Clock::now() < until) {
    if (done()) return true;
    std::this_thread::sleep_for(5ms);
  }
  return done();
}

TEST(Launch, GivesEveryRankItsPlace) {
  const Ran ran =
      run(shell(3, "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $CLEAVE_LAUNCHED"));
  EXPECT_EQ(ran.result.exit, 0);
  EXPECT_EQ(ran.result.cause, -1);
  EXPECT_EQ(ran.all(), "[0] 0 0 3 3 127.0.0.1 1\n[1] 1 1 3 3 127.0.0.1 1\n[2] 2 2 3 3 127.0.0.1 1\n");
}

TEST(Launch, GivesEveryRankItsPlaceInSlurmVariables) {
  setenv("SLURM_STEP_ID", "0", 1);
  setenv("SLURM_PROCID", "7", 1);  // of the launcher's task
  setenv("SLURM_NTASKS", "8", 1);
  const Ran ran = run(shell(2, "echo $SLURM_PROCID $SLURM_NTASKS ${SLURM_LOCALID:-none}"));
  for (const char* name : {"SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS"}) unsetenv(name);
  EXPECT_EQ(ran.all(), "[0] 0 2 none\n[1] 1 2 none\n");
}

TEST(Launch, GivesAllRanksOneSecretAndOnePort) {
  const auto words = [](const Ran& ran) {
    std::set<std::string> set;
    for (const auto& line : ran.lines) set.insert(line.substr(4));
    return set;
  };
  const LaunchOptions options = shell(2, "echo $MASTER_PORT $CLEAVE_TOKEN $CLEAVE_JOB_ID");
  const auto first = words(run(options)), second = words(run(options));
  EXPECT_EQ(first.size(), 1u);
  EXPECT_NE(first, second);
}

TEST(Launch, HoldsThePortUntilRankZeroListens) {
  const comm::Socket reserved = comm::reserve_port(0);
  ASSERT_TRUE(reserved);
  EXPECT_TRUE(comm::listen_on(comm::port_of(reserved)));
  LaunchOptions options = shell(1, "true");
  const comm::Socket taken = comm::listen_on(0);
  options.port = comm::port_of(taken);
  EXPECT_THROW(launch_local(options), Error);
}

TEST(Launch, ListensForRankZeroBeforeItStarts) {
  const std::string script = R"sh(
    if [ "$RANK" = 0 ]; then
      socket=$(readlink "/proc/self/fd/$CLEAVE_MEETING_FD")
      bash -c ": <>/dev/tcp/127.0.0.1/$CLEAVE_MEETING_PORT" && echo "accepts ${socket%%:*}"
    else
      echo "port ${CLEAVE_MEETING_PORT:+set}, descriptor ${CLEAVE_MEETING_FD:-none}"
    fi)sh";
  setenv("CLEAVE_MEETING_FD", "77", 1);  // of an outer launcher
  const Ran ran = run(shell(2, script));
  unsetenv("CLEAVE_MEETING_FD");
  EXPECT_EQ(ran.all(), "[0] accepts socket\n[1] port set, descriptor none\n");
}

TEST(Launch, ListensAtTheMasterPortOfSeveralHostsForThisProgramOnly) {
  NodeStart node;
  node.nodes = node.world = 2;
  node.token = "a secret";
  for (const char* program : {"/proc/self/exe", "/bin/sh"}) {
    node.ranks = {{0, 0, 0, {program}}};
    const RankPorts ports = take_ports(node, true);
    const bool ours = program != std::string("/bin/sh");
    EXPECT_EQ(bool(ports.meeting), ours);
    EXPECT_EQ(bool(ports.reserved), !ours);
    // Another process, such as a script's torch.distributed, can listen at a port that is only reserved.
    EXPECT_EQ(bool(comm::listen_on(ports.master_port, "127.0.0.1")), !ours);
  }
}

TEST(Launch, DividesTheCores) {
  const int cores = int(std::thread::hardware_concurrency());
  if (cores < 2) GTEST_SKIP() << "one core";
  Ran ran = run(shell(2, "echo $OMP_NUM_THREADS; grep Cpus_allowed_list /proc/self/status"));
  ASSERT_EQ(ran.lines.size(), 4u);
  EXPECT_EQ(ran.lines[0], fmt::format("[0] {}\n", cores / 2));
  EXPECT_NE(ran.lines[1].substr(4), ran.lines[3].substr(4));
  LaunchOptions options = shell(2, "echo $OMP_NUM_THREADS; grep Cpus_allowed_list /proc/self/status");
  options.environment["OMP_NUM_THREADS"] = "1000";
  ran = run(options);
  EXPECT_EQ(ran.lines[0], "[0] 1000\n");
  EXPECT_EQ(ran.lines[1].substr(4), ran.lines[3].substr(4));  // too many threads for a share: not bound
  ran = run(shell(cores * 2, "echo $OMP_NUM_THREADS"));
  EXPECT_EQ(ran.lines.size(), size_t(cores) * 2);
  EXPECT_EQ(ran.lines[0], "[0] 1\n");
}

// The policy belongs to a thread, so this thread takes it along when it ends.
void in_thread(const std::function<void()>& body) { std::thread(body).join(); }

TEST(Launch, StartsARankOnItsCoresWithMemoryOfItsNode) {
  if (memory_policy() == MemoryPolicy::blocked) GTEST_SKIP() << "the container forbids memory policies";
  const int core = usable_cores().back();
  ChildProcess child = start_child(
      {.command = {"sh", "-c",
                   "grep Cpus_allowed_list /proc/self/status; cut -d' ' -f2 /proc/self/numa_maps"},
       .environment = {"PATH=/bin:/usr/bin"},
       .place = {{core}, 0}});
  waitpid(child.pid, nullptr, 0);
  std::vector<std::string> lines;
  while (child.output[0]) read_lines(child, 0, [&](std::string_view line) { lines.emplace_back(line); });
  ASSERT_GE(lines.size(), 2u);
  EXPECT_EQ(lines[0], fmt::format("Cpus_allowed_list:\t{}\n", core));
  EXPECT_EQ(lines[1], "prefer:0\n");
  EXPECT_EQ(preferred_memory_node(), -1);  // only the child's
}

TEST(Launch, TakesTheCoresAndTheMemoryNodeOfAPlace) {
  const std::vector<int> all = usable_cores();
  in_thread([&] {
    take_place({{}, -1});
    EXPECT_EQ(usable_cores(), all);
    EXPECT_EQ(preferred_memory_node(), -1);
    take_place({{all.back()}, 0});
    EXPECT_EQ(usable_cores(), std::vector<int>{all.back()});
    EXPECT_EQ(preferred_memory_node(), memory_policy() == MemoryPolicy::blocked ? -1 : 0);
  });
}

TEST(Launch, ReportsTheMemoryPolicyOfTheKernel) {
  if (memory_policy() == MemoryPolicy::blocked) GTEST_SKIP() << "the container forbids memory policies";
  in_thread([] {
    EXPECT_EQ(memory_policy(), MemoryPolicy::unset);
    EXPECT_FALSE(prefer_memory_of(-1));
    EXPECT_FALSE(prefer_memory_of(1023));  // no such node
    EXPECT_FALSE(prefer_memory_of(1 << 20));
    EXPECT_EQ(preferred_memory_node(), -1);
    EXPECT_FALSE(this_machine({}).gpu_nodes.size());
    EXPECT_TRUE(this_machine({}).binds_memory);
    EXPECT_TRUE(prefer_memory_of(0));
    EXPECT_EQ(memory_policy(), MemoryPolicy::set);
    EXPECT_EQ(preferred_memory_node(), 0);
    EXPECT_FALSE(this_machine({}).binds_memory);  // as after numactl
  });
}

TEST(Launch, SaysCoresAndMemoryOfARankOnSeveralNodes) {
  const Scratch scratch;
  MachineTable machine = dgx_h100();
  machine.nodes = {"0-223", ""};
  write_machine(scratch.folder(), machine);
  const std::string cores = as_ranges(usable_cores()) + " of NUMA node 0";
  in_thread([&] {
    EXPECT_EQ(place_of_process(topology_of(scratch.folder())), cores);
    if (!prefer_memory_of(0)) return;
    EXPECT_EQ(place_of_process(topology_of(scratch.folder())), cores + "; memory: node 0");
  });
  write_file(scratch.folder() / "sys/devices/system/node/has_memory", "0");
  EXPECT_EQ(place_of_process(topology_of(scratch.folder())), "");
}

// A rank with few cores near its GPU starts as many threads.
TEST(Launch, CountsTheThreadsOfARankByItsCores) {
  NodeStart node;
  node.ranks = {{0, 0, 0, {"program"}}};
  const char* const outer = getenv("OMP_NUM_THREADS");
  const std::optional<std::string> before = outer ? std::optional<std::string>(outer) : std::nullopt;
  unsetenv("OMP_NUM_THREADS");
  Placed placed = placed_rank(node, 0, 1, {{0}, 0});
  EXPECT_EQ(placed.environment["OMP_NUM_THREADS"], "1");
  EXPECT_EQ(placed.environment["CLEAVE_CORES"], "0");
  setenv("OMP_NUM_THREADS", "2", 1);  // more than this place has
  placed = placed_rank(node, 0, 1, {{0}, 0});
  EXPECT_EQ(placed.place, RankPlace());
  EXPECT_FALSE(placed.environment.contains("CLEAVE_CORES"));
  unsetenv("OMP_NUM_THREADS");
  if (before) setenv("OMP_NUM_THREADS", before->c_str(), 1);
}

// A script's libraries may start CUDA before the engine can set the variable.
TEST(Launch, MakesSeveralRanksLoadKernelsBeforeTheyWait) {
  const char* const set = getenv("CUDA_MODULE_LOADING");
  const std::optional<std::string> before = set ? std::optional<std::string>(set) : std::nullopt;
  unsetenv("CUDA_MODULE_LOADING");
  const std::string script = "echo ${CUDA_MODULE_LOADING:-none}";
  EXPECT_EQ(run(shell(2, script)).lines, (std::vector<std::string>{"[0] EAGER\n", "[1] EAGER\n"}));
  EXPECT_EQ(run(shell(1, script)).lines, std::vector<std::string>{"[0] none\n"});
  LaunchOptions options = shell(2, script);
  options.environment["CUDA_MODULE_LOADING"] = "LAZY";
  EXPECT_EQ(run(options).lines, (std::vector<std::string>{"[0] LAZY\n", "[1] LAZY\n"}));
  if (before) setenv("CUDA_MODULE_LOADING", before->c_str(), 1);
}

TEST(Launch, PrefixesWholeLines) {
  const Ran ran =
      run(shell(2, "printf 'a\\nb'; printf 'oops\\n' >&2; if [ $RANK = 1 ]; then printf ' c'; fi"));
  EXPECT_EQ(ran.all(), "[0] a\n[0] b\n[1] a\n[1] b c\n");
  EXPECT_EQ(std::set<std::string>(ran.errors.begin(), ran.errors.end()),
            (std::set<std::string>{"[0] oops\n", "[1] oops\n"}));
  const Ran large = run(shell(1, "head -c 300000 /dev/zero | tr '\\0' x; echo; seq 1 20000"));
  size_t bytes = 0;
  for (const auto& line : large.lines) bytes += line.size();
  EXPECT_GT(bytes, 300'000u + 20'000 * 6);
  EXPECT_TRUE(std::count(large.lines.begin(), large.lines.end(), "[0] 20000\n"));
}

TEST(Launch, ReturnsTheCodeOfTheFailedRank) {
  Ran ran = run(shell(3, "[ $RANK = 1 ] && exit 5; sleep 0.1; exit 0"));
  EXPECT_EQ(ran.result.exit, 5);
  EXPECT_EQ(ran.result.cause, 1);
  EXPECT_EQ(ran.result.message, "rank 1 ended with exit code 5");
  EXPECT_EQ(ran.result.exits, (std::vector<int>{0, 5, 0}));
  ran = run(shell(3, "[ $RANK = 2 ] && kill -9 $$; sleep 0.1; exit 6"));
  EXPECT_EQ(ran.result.exit, 137);
  EXPECT_EQ(ran.result.message, "rank 2 was killed by signal 9 (Killed)");
  ran = run(shell(2, "exit 75"));
  EXPECT_EQ(ran.result.exit, 75);
}

TEST(Launch, FindsTheCauseAmongTheExits) {
  EXPECT_EQ(cause_of({}), -1);
  EXPECT_EQ(cause_of({{0, 0}, {1, 0}}), -1);
  EXPECT_EQ(cause_of({{2, 6}, {0, 6}, {1, 137}}), 1);  // survivors may be seen first
  EXPECT_EQ(cause_of({{2, 6}, {0, 6}}), 2);
  EXPECT_EQ(cause_of({{3, 0}, {2, 5}, {1, 4}}), 2);
  EXPECT_EQ(cause_of({{1, 75}, {0, 75}}), 1);
  EXPECT_EQ(cause_of({{1, 75}, {0, 6}, {2, 3}}), 2);
}

TEST(Launch, NamesARankThatLeftWhileTheOthersWaitedForIt) {
  for (const char* code : {"0", "75"}) {
    const Ran ran = run(shell(
        3, fmt::format("[ $RANK = 1 ] && exit {}; sleep 0.5; echo 'error: rank 1 ended' >&2; exit 6", code)));
    EXPECT_EQ(ran.result.exit, 6);
    EXPECT_EQ(ran.result.cause, 1);
    EXPECT_TRUE(ran.result.message.starts_with(
        fmt::format("rank 1 ended with exit code {} while the others still ran; rank ", code)))
        << ran.result.message;
  }
  // Each has another cause.
  EXPECT_EQ(left_before(0, {{1, 0}, {2, 9}, {0, 9}}), -1);
  EXPECT_EQ(left_before(0, {{2, 6}, {0, 6}, {1, 0}}), -1);
  EXPECT_EQ(left_before(-1, {{1, 0}, {0, 0}}), -1);
  EXPECT_EQ(left_before(0, {{2, 75}, {1, 0}, {0, 6}}), 2);
}

TEST(Launch, NamesTheRankWhoseErrorAnotherRepeats) {
  const std::string traceback = "echo 'Traceback (most recent call last):'; echo '  File \"a\"'; echo '";
  const Ran ran =
      run(shell(2, "exec >&2; [ $RANK = 0 ] && { sleep 0.3; " + traceback +
                       "cleave.errors.CheckpointError: /full: cannot be written'; exit 4; }; " + traceback +
                       "cleave.errors.CheckpointError: rank 0: /full: cannot be written'; exit 4"));
  EXPECT_EQ(ran.result.cause, 0);
  EXPECT_EQ(ran.result.message,
            "rank 0 ended with exit code 4: cleave.errors.CheckpointError: /full: cannot be written");
}

TEST(Launch, EndsOtherRanksWhenOneFails) {
  // The first rank ignores SIGTERM and leaves a child process.
  LaunchOptions options = shell(2, "[ $RANK = 1 ] && exit 7; trap '' TERM; sleep 60 & sleep 60; sleep 60");
  options.environment["CLEAVE_TEST_MARK"] = "ends-the-others";
  const auto start = comm::Clock::now();
  const Ran ran = run(options);
  EXPECT_LT(comm::Clock::now() - start, 10s);
  EXPECT_EQ(ran.result.exit, 7);
  EXPECT_EQ(ran.result.cause, 1);
  EXPECT_EQ(ran.result.exits[0], 137);
  EXPECT_TRUE(within(2s, [] { return processes_with("ends-the-others") == 0; }));
}

TEST(Launch, NamesAProgramThatDoesNotExist) {
  LaunchOptions options;
  options.command = {"./no-such-program"};
  expect_error(Exit::usage, {"./no-such-program: cannot be started: No such file"},
               [&] { launch_local(options); });
  EXPECT_THROW(launch_local(LaunchOptions{.ranks = 0, .command = {"true"}}), Error);
  EXPECT_THROW(launch_local(LaunchOptions{}), Error);
}

// The launcher in a separate process, which can be signaled.
struct LaunchProcess {
  explicit LaunchProcess(const LaunchOptions& options) {
    pid = fork();
    if (pid != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int exit = 1;
    try {
      exit = launch_local(options).exit;
    } catch (...) {
    }
    _exit(exit);
  }
  int wait() {
    int status = 0;
    if (!within(10s, [&] { return waitpid(pid, &status, WNOHANG) == pid; })) kill(pid, SIGKILL);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  pid_t pid;
};

TEST(Launch, ForwardsSignalsOnce) {
  const std::string folder = testing::TempDir() + "/cleave_signals_" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  const auto count = [&](const std::string& suffix) {
    int n = 0;
    for (const auto& e : std::filesystem::directory_iterator(folder)) n += e.path().extension() == suffix;
    return n;
  };
  LaunchOptions options = shell(2, "trap 'touch " + folder + "/$RANK.usr' USR1; trap 'exit 75' TERM; touch " +
                                       folder + "/$RANK.ready; while :; do sleep 0.02; done");
  LaunchProcess launch(options);
  ASSERT_TRUE(within(5s, [&] { return count(".ready") == 2; }));
  kill(launch.pid, SIGUSR1);
  EXPECT_TRUE(within(5s, [&] { return count(".usr") == 2; }));
  kill(launch.pid, SIGTERM);
  EXPECT_EQ(launch.wait(), 75);
  std::filesystem::remove_all(folder);
}

TEST(Launch, KillsAtTheSecondInterrupt) {
  LaunchOptions options = shell(2, "trap '' INT; sleep 60; sleep 60");
  options.environment["CLEAVE_TEST_MARK"] = "second-interrupt";
  LaunchProcess launch(options);
  ASSERT_TRUE(within(5s, [] { return processes_with("second-interrupt") >= 4; }));
  kill(launch.pid, SIGINT);
  std::this_thread::sleep_for(100ms);
  kill(launch.pid, SIGINT);
  EXPECT_EQ(launch.wait(), 137);
  EXPECT_TRUE(within(2s, [] { return processes_with("second-interrupt") == 0; }));
}

TEST(Launch, EndsTheRanksWhenItIsKilled) {
  LaunchOptions options;
  options.ranks = 2;
  options.command = {"sleep", "60"};
  options.environment["CLEAVE_TEST_MARK"] = "taken-along";
  LaunchProcess launch(options);
  ASSERT_TRUE(within(5s, [] { return processes_with("taken-along") == 2; }));
  kill(launch.pid, SIGKILL);
  EXPECT_EQ(launch.wait(), -SIGKILL);
  EXPECT_TRUE(within(2s, [] { return processes_with("taken-along") == 0; }));
}

// This program as a rank: finds its place, connects, and works until a rank dies.
LaunchOptions talking(int ranks, const std::string& task) {
  LaunchOptions options;
  options.ranks = ranks;
  options.command = {std::filesystem::read_symlink("/proc/self/exe"), "--gtest_filter=RankOfLaunch.*",
                     "--gtest_also_run_disabled_tests"};
  options.environment["CLEAVE_TEST_TASK"] = task;
  return options;
}

TEST(RankOfLaunch, DISABLED_Runs) {
  const Environment env = environment_of_process();
  const std::string task = env.count("CLEAVE_TEST_TASK") ? env.at("CLEAVE_TEST_TASK") : "";
  int exit = 0;
  try {
    const auto world = comm::connect(discover_ranks(env).info);
    Stream stream;
    const int rank = world->info().rank;
    int32_t sum = 1;
    for (int i = 0; i < 1'000'000; ++i) {
      sum = 1;
      world->communicator().all_reduce(Tensor(&sum, DType::int32, {1}), stream, {.what = "loss"});
      if (task == "sum") break;
      if (i == 1000 && rank == 1) kill(getpid(), SIGKILL);
      std::this_thread::sleep_for(100us);
    }
    std::printf("sum %d by %s\n", sum, world->info().launched_by.c_str());
    std::fflush(stdout);
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    exit = int(e.exit());
  }
  if (env.count("CLEAVE_TEST_TASK")) _exit(exit);
}

TEST(Launch, RunsRanksThatCommunicate) {
  const Ran ran = run(talking(4, "sum"));
  EXPECT_EQ(ran.result.exit, 0) << ran.result.message;
  EXPECT_EQ(std::count(ran.lines.begin(), ran.lines.end(), "[2] sum 4 by cleave launch\n"), 1) << ran.all();
}

TEST(Launch, NamesTheKilledRankWhileTheOthersLeave) {
  const auto start = comm::Clock::now();
  const Ran ran = run(talking(3, "die"));
  EXPECT_LT(comm::Clock::now() - start, 8s);  // leave_grace is 10 s: the ranks left without help
  EXPECT_EQ(ran.result.exit, 137);
  EXPECT_EQ(ran.result.cause, 1);
  EXPECT_EQ(ran.result.exits, (std::vector<int>{6, 137, 6}));
  EXPECT_TRUE(std::any_of(ran.errors.begin(), ran.errors.end(), [](const std::string& line) {
    return line.find("all_reduce of 1 int32 (loss)") != std::string::npos &&
           line.find("rank 1") != std::string::npos;
  })) << (ran.errors.empty() ? "" : ran.errors[0]);
}

}  // namespace
}  // namespace cleave::launcher
