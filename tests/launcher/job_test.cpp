// A C++ program as the ranks of a job: this program starts itself, with run_job as its main().
#include "launcher/job.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <new>
#include <system_error>

#include "device/stream.h"
#include "launcher/discovery.h"
#include "launcher/exit_code.h"
#include "launcher/flight_record.h"
#include "launcher/launch.h"
#include "tests/scratch.h"

namespace cleave::launcher {
namespace {

constexpr std::string_view kConfig =
    R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "cleave": {"comm_timeout_s": 1}})";

int32_t sum_over(comm::Communicator& ranks) {
  Stream stream;
  int32_t sum = 1;
  ranks.all_reduce(Tensor(&sum, DType::int32, {1}, MemoryKind::host), stream, {.what = "votes"});
  return sum;
}

// In its own function, for its name in the stack.
volatile std::sig_atomic_t handled = 0;
int* volatile nowhere = nullptr;
[[gnu::noinline]] void crash_here() { *nowhere = 1; }

const std::map<std::string, std::function<int(Job&)>> kBodies = {
    {"sum",
     [](Job& job) {
       const int32_t sum = sum_over(job.connect());
       std::printf("%d ranks on %s, any %d %d, word %s\n", sum, name_of(job.device()).c_str(),
                   job.any(job.info().rank == 1), job.any(false),
                   job.from_first(job.first() ? "yes" : "no").c_str());
       std::fflush(stdout);
       return 0;
     }},
    {"environment",
     [](Job& job) {
       const char *channels = getenv("CUDA_DEVICE_MAX_CONNECTIONS"), *loading = getenv("CUDA_MODULE_LOADING");
       job.connect();
       std::printf("channels %s, kernels %s\n", channels ? channels : "unset", loading ? loading : "unset");
       std::fflush(stdout);
       return 0;
     }},
    {"children",
     [](Job& job) {
       job.connect();
       const std::string sees =
           "env | grep -c 'CLEAVE_TOKEN\\|CLEAVE_MEETING' && exit 1; ls -l /proc/self/fd | grep -c socket && "
           "exit 1; "
           "exit 0";
       require(std::system(sees.c_str()) == 0, Exit::data, "a child has the secret or a socket");
       return 0;
     }},
    {"one fails",
     [](Job& job) -> int {
       comm::Communicator& ranks = job.connect();
       require(ranks.rank() != 1, Exit::data, "the samples are used up");
       for (;;) sum_over(ranks);
     }},
    {"all fail together",
     [](Job& job) {
       job.connect();
       job.together(Exit::checkpoint, [&] { require(job.info().rank != 2, Exit::data, "no such file"); });
       return 0;
     }},
    {"a typing error",
     [](Job& job) {
       job.connect(job.read_config_text(R"({"train_batch_sizes": 4})", "built-in").config);
       return 0;
     }},
    {"one is late",
     [](Job& job) {
       comm::Communicator& ranks = job.connect(job.read_config_text(kConfig, "built-in").config);
       if (ranks.rank() == 1) sleep(30);
       sum_over(ranks);
       return 0;
     }},
    {"one crashes",
     [](Job& job) {
       comm::Communicator& ranks = job.connect();
       if (ranks.rank() == 1) crash_here();
       sum_over(ranks);
       return 0;
     }},
    {"one aborts",
     [](Job& job) {
       comm::Communicator& ranks = job.connect();
       if (ranks.rank() == 1) std::terminate();
       sum_over(ranks);
       return 0;
     }},
    {"records",
     [](Job& job) {
       comm::Communicator& ranks = job.connect();
       sum_over(ranks);
       raise(SIGQUIT);
       raise(SIGQUIT);
       std::printf("continues with %d\n", sum_over(ranks));
       std::fflush(stdout);
       return 0;
     }},
    {"has its own handler",
     [](Job& job) {
       sum_over(job.connect());
       raise(SIGQUIT);
       return handled ? 0 : 7;
     }},
    {"stops",
     [](Job& job) {
       Job::catch_signals();
       comm::Communicator& ranks = job.connect();
       for (int step = 0; !job.any(Job::stop_requested()); ++step)
         if (step == 3 && ranks.rank() == 0) raise(SIGTERM), raise(SIGTERM);  // the second is forwarded
       return int(Exit::stopped);
     }},
};

TEST(RankOfJob, DISABLED_Runs) {
  const Environment env = environment_of_process();
  const auto task = env.find("CLEAVE_TEST_TASK");
  if (task != env.end() && task->second == "has its own handler")
    std::signal(SIGQUIT, [](int) { handled = 1; });
  if (task != env.end()) _exit(run_job(kBodies.at(task->second), {.device = "cpu"}));
}

struct Ran {
  LaunchResult result;
  std::vector<std::string> lines, errors;
  std::string said;
  bool has_error(const std::string& text) const {
    return std::any_of(errors.begin(), errors.end(),
                       [&](const std::string& line) { return line.find(text) != line.npos; });
  }
};

Ran run(int ranks, const std::string& task, const std::string& flights = "off") {
  Ran ran;
  ran.result =
      launch_local({.ranks = ranks,
                    .command = {std::filesystem::read_symlink("/proc/self/exe"), "--gtest_filter=RankOfJob.*",
                                "--gtest_also_run_disabled_tests"},
                    .environment = {{"CLEAVE_TEST_TASK", task}, {"CLEAVE_FLIGHT", flights}},
                    .leave_grace = std::chrono::seconds(2)},
                   {.output = [&](std::string_view line,
                                  bool is_error) { (is_error ? ran.errors : ran.lines).emplace_back(line); },
                    .say = [&](const std::string& text) { ran.said += text; }});
  return ran;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

TEST(FlightRecord, OfAMissedDeadlineNamesTheRankThatIsLate) {
  const Scratch scratch;
  const Ran ran = run(2, "one is late", scratch.path("a/b"));
  EXPECT_EQ(ran.result.exits.at(0), int(Exit::rank_lost));
  EXPECT_TRUE(has(ran.said, "flight records of 2 of 2 ranks: ")) << ran.said;
  EXPECT_TRUE(has(ran.said, "in all_reduce of 1 int32 (votes), call")) << ran.said;
  EXPECT_TRUE(has(ran.said, "rank 1 is missing: ")) << ran.said;
  EXPECT_TRUE(has(ran.said, "look at rank 1\n")) << ran.said;
  EXPECT_TRUE(has(ran.said, "sleep")) << "the stack of the main thread: " << ran.said;
  EXPECT_FALSE(ran.has_error("flight record"));
  const std::vector<FlightRecord> records = read_flight_records(scratch.path("a/b"));
  ASSERT_EQ(records.size(), 2u);
  EXPECT_TRUE(has(records[0].text, "votes")) << records[0].text;
  EXPECT_GE(records[0].threads.size(), 2u) << "the thread of the rendezvous";
}

TEST(FlightRecord, OfACrashHasItsSignalAndItsStack) {
  const Scratch scratch;
#if !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)  // sanitizers end such a process themselves
  const Ran ran = run(2, "one crashes", scratch.folder().string());
  EXPECT_EQ(ran.result.exits.at(1), 128 + SIGSEGV);
  EXPECT_TRUE(has(ran.said, "rank 1 ended with SIGSEGV")) << ran.said;
  EXPECT_TRUE(has(ran.said, "crash_here")) << ran.said;
#endif
  const Ran other = run(2, "one aborts", scratch.folder().string());
  EXPECT_EQ(other.result.exits.at(1), 128 + SIGABRT);
  EXPECT_TRUE(has(other.said, "rank 1 ended with SIGABRT")) << other.said;
}

TEST(FlightRecord, OfASignalLetsTheRanksContinue) {
  const Scratch scratch;
  const Ran ran = run(2, "records", scratch.folder().string());
  EXPECT_EQ(ran.result.exits, (std::vector<int>{0, 0})) << ran.result.message;
  EXPECT_EQ(std::count(ran.lines.begin(), ran.lines.end(), "[1] continues with 2\n"), 1);
  EXPECT_TRUE(has(ran.said, "flight records of 2 of 2 ranks: SIGQUIT")) << ran.said;
  EXPECT_TRUE(has(ran.said, "in no call; last: all_reduce of 1 int32 (votes)")) << ran.said;
}

TEST(FlightRecord, LeavesAHandlerOfTheProgramInPlace) {
  const Scratch scratch;
  const Ran ran = run(2, "has its own handler", scratch.path("none"));
  EXPECT_EQ(ran.result.exits, (std::vector<int>{0, 0})) << ran.result.message;
  EXPECT_FALSE(std::filesystem::exists(scratch.path("none")));
}

TEST(FlightRecord, IsNotWrittenForAnErrorThatExplainsItself) {
  const Scratch scratch;
  const Ran ran = run(3, "one fails", scratch.path("none"));
  EXPECT_EQ(ran.result.exit, int(Exit::data));
  EXPECT_EQ(ran.said, "");
  EXPECT_FALSE(std::filesystem::exists(scratch.path("none")));
}

TEST(Job, ConnectsItsRanksAndReturnsTheCodeOfTheBody) {
  const Ran ran = run(3, "sum");
  EXPECT_EQ(ran.result.exits, (std::vector<int>{0, 0, 0})) << ran.result.message;
  for (const char* prefix : {"[0]", "[1]", "[2]"})
    EXPECT_EQ(std::count(ran.lines.begin(), ran.lines.end(),
                         fmt::format("{} 3 ranks on cpu, any 1 0, word yes\n", prefix)),
              1);
}

TEST(Job, SetsCudaVariablesForOneRankAndForSeveral) {
  for (int ranks : {1, 2}) {
    const Ran ran = run(ranks, "environment");
    for (int r = 0; r < ranks; ++r)
      EXPECT_EQ(std::count(ran.lines.begin(), ran.lines.end(),
                           fmt::format("[{}] channels 32, kernels {}\n", r, ranks == 1 ? "unset" : "EAGER")),
                1)
          << ranks;
  }
}

TEST(Job, KeepsItsSecretAndItsSocketsFromChildren) {
  const Ran ran = run(2, "children");
  EXPECT_EQ(ran.result.exits, (std::vector<int>{0, 0})) << ran.result.message;
}

TEST(Job, TellsTheOtherRanksWhyOneFails) {
  const Ran ran = run(3, "one fails");
  EXPECT_EQ(ran.result.exits,
            (std::vector<int>{int(Exit::rank_lost), int(Exit::data), int(Exit::rank_lost)}));
  EXPECT_EQ(ran.result.exit, int(Exit::data));
  EXPECT_TRUE(ran.has_error("[1] error: rank 1: the samples are used up\n"));
  EXPECT_TRUE(ran.has_error(") failed: the samples are used up\n")) << ran.errors.at(0);
}

TEST(Job, PrintsTheErrorOfAllRanksOnce) {
  const Ran ran = run(3, "all fail together");
  EXPECT_EQ(ran.result.exits, std::vector<int>(3, int(Exit::data)));
  EXPECT_EQ(ran.errors, std::vector<std::string>{"[0] error: rank 2: no such file\n"});
}

TEST(Job, RejectsAConfigurationOnEveryRankAndNamesTheKey) {
  const Ran ran = run(2, "a typing error");
  EXPECT_EQ(ran.result.exits, std::vector<int>(2, int(Exit::usage)));
  EXPECT_TRUE(ran.has_error("error: built-in:1:2: train_batch_sizes: unknown key")) << ran.errors.at(0);
}

TEST(Job, WaitsForOtherRanksUntilTheConfiguredTimeout) {
  const Ran ran = run(2, "one is late");
  EXPECT_EQ(ran.result.exits.at(0), int(Exit::rank_lost));
  EXPECT_TRUE(ran.has_error("votes")) << ran.result.message;
}

TEST(Job, AsksEveryRankToStopIfOneIsSignaled) {
  const Ran ran = run(2, "stops");
  EXPECT_EQ(ran.result.exits, std::vector<int>(2, int(Exit::stopped)));
}

struct Said {
  int code;
  std::string text;
};

Said ended_with(const std::function<int()>& body) {
  testing::internal::CaptureStderr();
  const int code = exit_code_of(body, "tell the author");
  return {code, testing::internal::GetCapturedStderr()};
}

TEST(ExitCode, IsTheBodysOrThatOfWhatItThrows) {
  EXPECT_EQ(ended_with([] { return 75; }).code, 75);
  Said said = ended_with([]() -> int { throw Error(Exit::checkpoint, "no such checkpoint"); });
  EXPECT_EQ(said.code, 4);
  EXPECT_EQ(said.text, "error: no such checkpoint\n");
  said = ended_with([]() -> int { throw Error(Exit::usage, ""); });  // another rank prints it
  EXPECT_EQ(said.code, 2);
  EXPECT_EQ(said.text, "");
  said = ended_with([]() -> int { throw std::bad_alloc(); });
  EXPECT_EQ(said.code, 3);
  said = ended_with([]() -> int { throw std::system_error(EMFILE, std::generic_category()); });
  EXPECT_EQ(said.code, 2);
  EXPECT_NE(said.text.find("ulimit -n"), std::string::npos) << said.text;
  said = ended_with([]() -> int { throw std::system_error(EAGAIN, std::generic_category()); });
  EXPECT_EQ(said.code, 3);
}

TEST(ExitCode, OfADefectIsOneWithAnAction) {
  Said said = ended_with([]() -> int { throw Error(Exit::internal, "rows do not match"); });
  EXPECT_EQ(said.code, 1);
  EXPECT_EQ(said.text, "error: rows do not match (tell the author)\n");
  said = ended_with([]() -> int { throw std::logic_error("broken"); });
  EXPECT_EQ(said.code, 1);
  EXPECT_EQ(said.text, "error: broken (tell the author)\n");
}

TEST(ExitCode, PrintsNoControlCharactersOfAMessage) {
  EXPECT_EQ(ended_with([]() -> int { throw Error(Exit::data, "a\x1b[2Jb"); }).text, "error: a\\x1b[2Jb\n");
}

}  // namespace
}  // namespace cleave::launcher
