// Launch plans, their text form, and the commands that reach other hosts.
#include "launcher/launch_plan.h"

#include <gtest/gtest.h>

#include "config_schema/base64.h"
#include "launcher/forwarded.h"
#include "launcher/remote_commands.h"
#include "launcher/shell_words.h"
#include "tests/scratch.h"

namespace cleave::launcher {
namespace {

using Words = std::vector<std::string>;

NodeStart common() {
  NodeStart node;
  node.master_addr = "10.0.0.4", node.master_port = 6105;
  node.job_id = "job", node.token = "a secret", node.set_devices = true, node.folder = "/work dir";
  node.environment = {{"PYTHONPATH", "/x y"}, {"WANDB_API_KEY", "hush"}};
  return node;
}

// Three ranks on the first host and two on the second: the rank modulo the host's ranks is not the local
// rank.
LaunchPlan unequal() {
  return make_plan({{"h-1", {0, 1, 3}}, {"h-2", {2, 5}}},
                   {.before = {"python", "-u", "a.py"}, .after = {"x y"}, .local_rank = true}, common());
}

TEST(LaunchPlan, CountsLocalRanksPerHostOnUnequalHosts) {
  const LaunchPlan plan = unequal();
  ASSERT_EQ(plan.nodes.size(), 2u);
  std::vector<std::array<int, 4>> places;
  for (const NodeStart& n : plan.nodes)
    for (const RankStart& r : n.ranks) places.push_back({n.node, r.rank, r.local_rank, r.slot});
  EXPECT_EQ(places, (std::vector<std::array<int, 4>>{
                        {0, 0, 0, 0}, {0, 1, 1, 1}, {0, 2, 2, 3}, {1, 3, 0, 2}, {1, 4, 1, 5}}));
  EXPECT_EQ(plan.nodes[1].ranks[1].command, (Words{"python", "-u", "a.py", "--local_rank=1", "x y"}));
}

TEST(LaunchPlan, SetsTheVariablesOfTorchAndDeepSpeed) {
  const LaunchPlan plan = unequal();
  EXPECT_EQ(place_of(plan.nodes[1], plan.nodes[1].ranks[1], 6105),
            (std::map<std::string, std::string>{{"RANK", "4"},
                                                {"LOCAL_RANK", "1"},
                                                {"WORLD_SIZE", "5"},
                                                {"LOCAL_WORLD_SIZE", "2"},
                                                {"LOCAL_SIZE", "2"},
                                                {"NODE_RANK", "1"},
                                                {"CROSS_RANK", "1"},
                                                {"CROSS_SIZE", "2"},
                                                {"MASTER_ADDR", "10.0.0.4"},
                                                {"MASTER_PORT", "6105"},
                                                {"CUDA_VISIBLE_DEVICES", "2,5"},
                                                {"CLEAVE_LAUNCHED", "1"},
                                                {"CLEAVE_ATTEMPT", "0"},
                                                {"CLEAVE_JOB_ID", "job"},
                                                {"CLEAVE_TOKEN", "a secret"},
                                                {"PYTHONPATH", "/x y"},
                                                {"WANDB_API_KEY", "hush"}}));
}

TEST(LaunchPlan, IsReadBackUnchanged) {
  LaunchPlan plan = unequal();
  plan.nodes[0].binding = {Binding::How::asked, {1, 2, 4}};
  plan.nodes[0].log_folder = "logs", plan.nodes[0].attempt = 3;
  plan.nodes[0].ranks[0].command.push_back("\xc3\xa4 \n\"$(x)");
  EXPECT_EQ(decode_nodes(encode(plan.nodes)), plan.nodes);
  std::string other = encode(plan.nodes);
  other.replace(other.find("\"version\":\"") + 11, 1, "9");
  EXPECT_NE(
      error_text(Exit::usage, [&] { decode_nodes(other); }).find("install the same version on all hosts"),
      std::string::npos);
  EXPECT_NE(error_text(Exit::usage, [] { decode_nodes("{}"); }).find("no part of a job"), std::string::npos);
  plan.nodes[0].ranks[0].command.push_back("\xff");
  EXPECT_NE(error_text(Exit::usage, [&] { encode(plan.nodes); }).find("not UTF-8"), std::string::npos);
}

std::vector<std::vector<int>> cores(const std::vector<RankPlace>& places) {
  std::vector<std::vector<int>> list;
  for (const RankPlace& p : places) list.push_back(p.cores);
  return list;
}

TEST(LaunchPlan, SharesOutCores) {
  using Lists = std::vector<std::vector<int>>;
  NodeStart node = unequal().nodes[0];
  EXPECT_EQ(cores(places_of(node, {.usable = {4, 5, 6, 7, 8, 9, 10}})), (Lists{{4, 5}, {6, 7}, {8, 9}}));
  EXPECT_EQ(cores(places_of(node, {.usable = {0, 1}})), (Lists{{}, {}, {}}));
  node.binding = {Binding::How::asked, {1, 3, 5}};
  EXPECT_EQ(cores(places_of(node, {.usable = {0, 1, 2, 3, 4, 5}})), (Lists{{1}, {3}, {5}}));
  EXPECT_EQ(error_text(Exit::usage,
                       [&] {
                         places_of(node, {.usable = {0, 1}});
                       }),
            "--bind_core_list: core 3 is not available on h-1 (expected one of 0,1)");
  node.binding.cores = {1, 3};
  EXPECT_EQ(error_text(Exit::usage,
                       [&] {
                         places_of(node, {.usable = {0, 1}});
                       }),
            "--bind_cores_to_rank: h-1 has too few cores (got 2 cores for 3 ranks, expected one each)");
  node.binding.how = Binding::How::none;
  EXPECT_EQ(cores(places_of(node, {.usable = {0, 1, 2, 3}})), (Lists{{}, {}, {}}));
  EXPECT_EQ(parse_core_list("0,2-4,7"), (std::vector<int>{0, 2, 3, 4, 7}));
  for (const char* text : {"", "a", "3-1", "1,1", "2,1", "1-3,2", "1,", "1;2", "-1", "1-"})
    EXPECT_NE(error_text(Exit::usage, [&] { parse_core_list(text); }).find("--bind_core_list"),
              std::string::npos)
        << text;
}

// Two nodes with three cores each; the GPUs of ranks 0 and 2 are at node 1.
Machine two_nodes() {
  Machine machine{.usable = {0, 1, 2, 3, 4, 5}, .gpu_nodes = {1, 0, 1}, .binds_memory = true};
  for (int cpu = 0; cpu < 6; ++cpu) machine.topology.cpus.push_back({cpu, cpu, cpu / 3});
  machine.topology.memory_nodes = {0, 1};
  return machine;
}

TEST(LaunchPlan, FollowsGpusUnlessTheUserListsCores) {
  NodeStart node = unequal().nodes[0];
  EXPECT_EQ(places_of(node, two_nodes()), (std::vector<RankPlace>{{{3}, 1}, {{0, 1, 2}, 0}, {{4}, 1}}));
  node.binding.cores = {0, 1, 2, 3, 4, 5};
  EXPECT_EQ(places_of(node, two_nodes()), (std::vector<RankPlace>{{{0, 1}, 0}, {{2, 3}, -1}, {{4, 5}, 1}}));
  Machine numactl = two_nodes();  // the user's policy stays
  numactl.binds_memory = false;
  EXPECT_EQ(places_of(node, numactl)[2], (RankPlace{{4, 5}, -1}));
}

TEST(LaunchPlan, NamesTheNumaNodesOfARanksCores) {
  NodeStart node = unequal().nodes[0];
  node.binding = {Binding::How::asked, {0, 1, 2, 3, 4, 5}};
  const std::string text = describe({{node}, ""}, two_nodes());
  EXPECT_NE(text.find("# rank 0: cores 0-1 of NUMA node 0; memory: node 0\n"), std::string::npos) << text;
  EXPECT_NE(text.find("# rank 1: cores 2-3 of NUMA nodes 0-1\n"), std::string::npos) << text;
  EXPECT_NE(text.find("# rank 2: cores 4-5 of NUMA node 1; memory: node 1\n"), std::string::npos) << text;
  EXPECT_EQ(as_ranges({0, 1, 2, 8, 10, 11}), "0-2,8,10-11");
}

TEST(LaunchPlan, IsPrintedForPastingWithoutSecrets) {
  LaunchPlan plan = unequal();
  const std::string text = describe(plan, {.usable = {0, 1, 2}});
  EXPECT_NE(text.find("# h-2: ranks 3 to 4 of 5, slots 2,5\n"), std::string::npos) << text;
  EXPECT_NE(text.find("cd '/work dir' && env "), std::string::npos);
  EXPECT_NE(text.find(" PYTHONPATH='/x y' "), std::string::npos);
  EXPECT_NE(text.find(" taskset -c 1 python -u a.py --local_rank=1 'x y'\n"), std::string::npos);
  EXPECT_EQ(text.find("secret"), std::string::npos);
  EXPECT_EQ(text.find("hush"), std::string::npos);
}

TEST(LaunchPlan, MasksSecretsInVariablesAndArguments) {
  LaunchPlan plan = unequal();
  for (const char* name : {"DATABASE", "DB_PASS", "OPENAI_KEY"})
    plan.nodes[0].environment[name] = "postgres://u:hidden@h";
  for (const char* word : {"http://u:hidden@h", "--hf_token=hidden", "--hf_token", "hidden"})
    plan.nodes[0].ranks[0].command.push_back(word);
  EXPECT_EQ(describe(plan, {.usable = {0, 1, 2}}).find("hidden"), std::string::npos);
}

TEST(ShellWords, AreReadBackUnchanged) {
  const Words words = {"",         "a b", "it's", "\"", "$HOME", "`x`",   "\\", "a\nb",
                       "\xc3\xa4", "-x",  "*",    "#",  "~",     "(;&|)", "a=b"};
  EXPECT_EQ(shell_words(shell_quoted(words), "these"), words);
  EXPECT_EQ(shell_words("  -x \"a b\" 'c'd\\ e \"\\\"\\n\" '' ", "these"),
            (Words{"-x", "a b", "cd e", "\"\\n", ""}));
  EXPECT_NE(error_text(Exit::usage, [] { shell_words("'a", "--launcher_args"); })
                .find("--launcher_args: unclosed quote:"),
            std::string::npos);
}

RemoteCommand only(const LaunchPlan& plan, LauncherKind kind, Words args = {}, int port = 0) {
  const auto list = remote_commands(
      plan, {.kind = kind, .args = std::move(args), .ssh_port = port, .program = "/opt/my cleave"});
  EXPECT_EQ(list.size(), 1u);
  return list.at(0);
}

TEST(RemoteCommands, StartALauncherOnEachHostBySsh) {
  const auto list =
      remote_commands(unequal(), {.args = {"-o", "User=me"}, .ssh_port = 1143, .program = "/opt/my cleave"});
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[1].command,
            (Words{"ssh", "-o", "User=me", "-p", "1143", "-T", "-o", "BatchMode=yes", "-o",
                   "ConnectTimeout=10", "-o", "ServerAliveInterval=3", "-o", "ServerAliveCountMax=3", "--",
                   "h-2", "exec '/opt/my cleave' launch --node"}));
  const std::string job = encode({unequal().nodes[1]});
  EXPECT_EQ(list[1].input, std::to_string(job.size()) + "\n" + job);
  EXPECT_TRUE(list[1].environment.empty());
  const auto near = remote_commands(unequal(), {.program = "cleave", .this_host = "h-1"});
  EXPECT_EQ(near[0].command, (Words{"cleave", "launch", "--node"}));
  EXPECT_EQ(near[1].command[0], "ssh");
}

TEST(RemoteCommands, StartALauncherOnAllHostsByPdsh) {
  const RemoteCommand c = only(unequal(), LauncherKind::pdsh, {"-t", "5"}, 1143);
  EXPECT_EQ(c.command, (Words{"pdsh", "-S", "-N", "-f", "1024", "-R", "ssh", "-t", "5", "-w", "h-1,h-2",
                              "exec '/opt/my cleave' launch --node %n"}));
  EXPECT_EQ(c.environment.at("PDSH_SSH_ARGS_APPEND"),
            "-o SendEnv=LC_CLEAVE_JOB -o ServerAliveInterval=3 -o ServerAliveCountMax=3 -p 1143");
  EXPECT_EQ(decode_nodes(config::decode_base64(c.environment.at(kJobVariable))), unequal().nodes);
  const auto percent = remote_commands(unequal(), {.kind = LauncherKind::pdsh, .program = "/a%h"});
  EXPECT_EQ(percent[0].command.back(), "exec /a%%h launch --node %n");
}

TEST(RemoteCommands, StartEachRankByMpi) {
  const Words rank = {"/opt/my cleave", "launch", "--rank"};
  const auto with_rank = [&](Words words) {
    words.insert(words.end(), rank.begin(), rank.end());
    return words;
  };
  EXPECT_EQ(only(unequal(), LauncherKind::openmpi, {"--allow-run-as-root"}).command,
            with_rank({"mpirun", "-n", "5", "--host", "h-1:3,h-2:2", "--bind-to", "none", "-x",
                       "LC_CLEAVE_JOB", "--allow-run-as-root"}));
  EXPECT_EQ(only(unequal(), LauncherKind::mpich).command,
            with_rank({"mpirun", "-n", "5", "-hosts", "h-1:3,h-2:2", "-genvall"}));
  const RemoteCommand mvapich = only(unequal(), LauncherKind::mvapich);
  EXPECT_EQ(mvapich.command, with_rank({"mpirun", "-n", "5", "-hosts", "h-1:3,h-2:2", "-genvall"}));
  EXPECT_EQ(mvapich.environment.at("MV2_ENABLE_AFFINITY"), "0");
  Words impi = with_rank({"mpirun", "-genvall", "-genv", "I_MPI_PIN", "0", "-n", "3", "-host", "h-1"});
  for (const char* word : {":", "-n", "2", "-host", "h-2"}) impi.emplace_back(word);
  EXPECT_EQ(only(unequal(), LauncherKind::impi).command, with_rank(impi));
  EXPECT_EQ(remote_commands(unequal(), {.kind = LauncherKind::mpich, .mpirun = "mpirun.mpich"})[0].command[0],
            "mpirun.mpich");
  for (const auto kind :
       {LauncherKind::openmpi, LauncherKind::mpich, LauncherKind::impi, LauncherKind::mvapich})
    EXPECT_EQ(decode_nodes(config::decode_base64(only(unequal(), kind).environment.at(kJobVariable))),
              unequal().nodes);
}

TEST(RemoteCommands, StartALauncherOnAllHostsBySrun) {
  const RemoteCommand c = only(unequal(), LauncherKind::slurm, {"--mem=0"});
  EXPECT_EQ(c.command, (Words{"srun",
                              "-n",
                              "2",
                              "--nodes",
                              "2",
                              "--ntasks-per-node",
                              "1",
                              "--nodelist",
                              "h-1,h-2",
                              "--overlap",
                              "--cpu-bind",
                              "none",
                              "--mpi",
                              "none",
                              "--export",
                              "ALL",
                              "--kill-on-bad-exit=0",
                              "--wait",
                              "0",
                              "--mem=0",
                              "/opt/my cleave",
                              "launch",
                              "--node"}));
  const std::string job = encode(unequal().nodes);
  EXPECT_EQ(c.input, std::to_string(job.size()) + "\n" + job);
  EXPECT_TRUE(c.environment.empty());
}

TEST(RemoteCommands, ContainNoSecretAndNoUserValue) {
  const LaunchPlan plan =
      make_plan({{"h-1", {0}}, {"h-2", {0}}}, {.before = {"x", "their argument"}}, common());
  for (int kind = 0; kind < 7; ++kind)
    for (const RemoteCommand& c : remote_commands(plan, {.kind = LauncherKind(kind)}))
      for (const std::string& word : c.command)
        for (const char* hidden : {"secret", "hush", "their argument"})
          EXPECT_EQ(word.find(hidden), std::string::npos) << word;
}

TEST(RemoteCommands, RejectAJobTooLongForAVariable) {
  NodeStart large = common();
  large.environment["NCCL_X"] = std::string(200'000, 'x');
  const LaunchPlan plan = make_plan({{"h-1", {0}}, {"h-2", {0}}}, {.before = {"x"}}, large);
  EXPECT_NE(error_text(Exit::usage, [&] { only(plan, LauncherKind::openmpi); })
                .find("bytes); use --launcher ssh, which supports any size"),
            std::string::npos);
  EXPECT_EQ(parse_launcher("PDSH"), LauncherKind::pdsh);
  EXPECT_NE(error_text(Exit::usage, [] { parse_launcher("rsh"); }).find("expected one of ssh, pdsh, openmpi"),
            std::string::npos);
}

TEST(Forwarded, AreVariablesOfDeepSpeedAndCleave) {
  EXPECT_EQ(forwarded_variables({{"NCCL_DEBUG", "INFO"},
                                 {"PYTHONPATH", "/p"},
                                 {"HOME", "/h"},
                                 {"UCX_TLS", "tcp"},
                                 {"CLEAVE_ISA", "v3"},
                                 {"CLEAVE_TOKEN", "t"},
                                 {"MLFLOW_RUN_ID", "r"},
                                 {"MV2_X", "1"},
                                 {"LD_PRELOAD", "x"}},
                                "/here"),
            (Environment{{"NCCL_DEBUG", "INFO"},
                         {"PYTHONPATH", "/here:/p"},
                         {"UCX_TLS", "tcp"},
                         {"CLEAVE_ISA", "v3"},
                         {"MLFLOW_RUN_ID", "r"},
                         {"MV2_X", "1"}}));
  EXPECT_EQ(
      forwarded_variables({{"AISC_JOB_NAME", "j"}, {"NCCL_IB_HCA", "x"}, {"UCX_NET_DEVICES", "y"}}, "/w"),
      (Environment{{"PYTHONPATH", "/w"}}));
}

TEST(Forwarded, AlsoComeFromAFile) {
  EXPECT_EQ(parse_environment_file("# mine\n\n A = b=c \nQ=\"x y\"\r\nE=\nD=$HOME", "f"),
            (Environment{{"A", "b=c"}, {"Q", "x y"}, {"E", ""}, {"D", "$HOME"}}));
  EXPECT_EQ(
      error_text(Exit::usage, [] { parse_environment_file("A=1\nexport B\n", "/home/me/.deepspeed_env"); }),
      "/home/me/.deepspeed_env:2: 'export B' is not a variable (expected NAME=VALUE); correct the line");
  for (const char* line : {"=x", "1A=x", "A B=x", "A;B=x"})
    EXPECT_NE(error_text(Exit::usage, [&] { parse_environment_file(line, "f"); }).find("f:1: "),
              std::string::npos)
        << line;
}

}  // namespace
}  // namespace cleave::launcher
