// Role of a launcher that another launcher started.
#include "launcher/role.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "launcher/hosts.h"
#include "launcher/machine.h"

namespace cleave::launcher {
namespace {

using Kind = LauncherRole::Kind;

struct Case {
  const char* name;
  Environment env;
  Kind kind;
  int rank = 0, nodes = 1, node = 0;
  const char* master = "127.0.0.1";
  int port = 29500;
};

const Environment kTorchSet = {
    {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"MASTER_ADDR", "m"}, {"MASTER_PORT", "6105"}};

Environment merged(Environment base, const Environment& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

TEST(Role, FollowsFromTheEnvironment) {
  const Environment azure = {{"AZUREML_RUN_ID", "r"}, {"AZUREML_NODE_COUNT", "2"}};
  const Environment four = {
      {"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"AZUREML_PROCESS_NAME", "rank_3"}};
  const Environment pod = {
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "p"}, {"MASTER_PORT", "23456"}};
  const Environment open_mpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                                {"OMPI_COMM_WORLD_SIZE", "2"},
                                {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                {"MASTER_PORT", "29500"}};
  const Environment slurm = {{"SLURM_PROCID", "1"},         {"SLURM_LOCALID", "0"},
                             {"SLURM_NODEID", "1"},         {"SLURM_STEP_NUM_TASKS", "2"},
                             {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                             {"SLURM_STEP_ID", "0"},        {"SLURM_STEP_NODELIST", "g[1-2]"},
                             {"SLURM_JOB_ID", "77"},        {"MASTER_PORT", "7000"}};
  const char* tf = R"({"cluster":{"chief":["c:1"],"worker":["a:1"]},"task":{"type":"worker","index":0}})";
  const Case cases[] = {
      {"nothing", {}, Kind::make},
      {"Azure ML, a process a GPU", merged(merged(kTorchSet, azure), four), Kind::adopt, 3, 2, 0, "m", 6105},
      {"Azure ML, a process a node", merged(kTorchSet, merged(azure, {{"NODE_RANK", "1"}})), Kind::node, 1, 2,
       1, "m", 6105},
      {"Azure ML, one process",
       {{"RANK", "0"},
        {"WORLD_SIZE", "1"},
        {"LOCAL_RANK", "0"},
        {"MASTER_ADDR", "m"},
        {"MASTER_PORT", "6105"},
        {"AZUREML_RUN_ID", "r"}},
       Kind::make,
       0,
       1,
       0,
       "m",
       6105},
      {"torchrun",
       merged(kTorchSet, {{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}, {"TORCHELASTIC_RUN_ID", "x"}}),
       Kind::adopt, 1, 1, 0, "127.0.0.1", 6105},  // all ranks are on this host
      {"torchrun once per node with an agent at the port",
       merged(kTorchSet, {{"LOCAL_WORLD_SIZE", "1"},
                          {"GROUP_RANK", "1"},
                          {"GROUP_WORLD_SIZE", "2"},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"}}),
       Kind::node, 1, 2, 1, "m", 6106},
      {"mpirun", open_mpi, Kind::adopt, 1, 1, 0},
      {"srun once on each node", slurm, Kind::node, 1, 2, 1, "g1", 7000},
      {"TF_CONFIG", {{"TF_CONFIG", tf}}, Kind::node, 1, 2, 1, "c", 6105},
      {"pods", pod, Kind::node, 0, 2, 1, "p", 23456},
      {"Kubeflow, which counts ranks",
       merged(
           pod,
           {{"WORLD_SIZE", "8"}, {"PET_NNODES", "2"}, {"PET_NPROC_PER_NODE", "4"}, {"PET_NODE_RANK", "1"}}),
       Kind::node, 0, 2, 1, "p", 23456},
      {"Kubeflow Trainer",
       {{"PET_NNODES", "2"},
        {"PET_NPROC_PER_NODE", "4"},
        {"PET_NODE_RANK", "1"},
        {"PET_MASTER_ADDR", "job-node-0-0.job"},
        {"PET_MASTER_PORT", "29400"}},
       Kind::node,
       0,
       2,
       1,
       "job-node-0-0.job",
       29400},
      {"our own launcher", merged(kTorchSet, {{"CLEAVE_LAUNCHED", "1"}, {"LOCAL_WORLD_SIZE", "1"}}),
       Kind::adopt, 1, 1, 0, "m", 6105}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const LauncherRole role = role_of_launcher(c.env);
    EXPECT_EQ(role.kind, c.kind);
    EXPECT_EQ(std::tie(role.info.rank, role.info.nodes, role.info.node_rank),
              std::tie(c.rank, c.nodes, c.node));
    EXPECT_EQ(role.info.master_addr, c.master);
    EXPECT_EQ(role.info.master_port, c.port);
  }
}

TEST(Role, OfAPodHasTheJobAndItsAttempt) {
  const LauncherRole role = role_of_launcher({{"PET_NNODES", "1"},
                                              {"PET_NODE_RANK", "0"},
                                              {"PET_MASTER_ADDR", "m"},
                                              {"PET_MASTER_PORT", "29400"},
                                              {"CLEAVE_JOB_ID", "first"},
                                              {"CLEAVE_ATTEMPT", "3"}});
  EXPECT_EQ(role.kind, LauncherRole::Kind::node);
  EXPECT_EQ(role.info.job_id, "first");
  EXPECT_EQ(role.info.attempt, 3);
}

TEST(Role, WithContradictionsIsRejected) {
  for (const Environment& env :
       {Environment{{"RANK", "0"}}, merged(kTorchSet, {{"RANK", "2"}}),
        merged(kTorchSet, {{"AZUREML_PROCESS_NAME", "rank_0"}}),
        Environment{
            {"TF_CONFIG", R"({"cluster":{"worker":["a:1"],"ps":["b:1"]},"task":{"type":"ps","index":0}})"}},
        Environment{{"TF_CONFIG", R"({"cluster":{"worker":["a:1"]},"task":{"type":"evaluator","index":0}})"}},
        Environment{{"RANK", "1"},
                    {"WORLD_SIZE", "5"},
                    {"MASTER_ADDR", "p"},
                    {"MASTER_PORT", "1"},
                    {"PET_NNODES", "2"},
                    {"PET_NPROC_PER_NODE", "4"}}})
    EXPECT_THROW(role_of_launcher(env), Error);
}

TEST(Role, GivesAnAdoptedRankTorchVariables) {
  EXPECT_TRUE(adopted_environment(kTorchSet, {}).empty());
  const comm::RankInfo info{.rank = 3,
                            .world = 4,
                            .local_rank = 1,
                            .local_size = 2,
                            .node_rank = 1,
                            .nodes = 2,
                            .master_addr = "m",
                            .master_port = 1234,
                            .job_id = "j"};
  EXPECT_EQ(adopted_environment({{"OMPI_COMM_WORLD_RANK", "3"}}, info),
            (Environment{{"RANK", "3"},
                         {"WORLD_SIZE", "4"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"LOCAL_SIZE", "2"},
                         {"NODE_RANK", "1"},
                         {"CROSS_RANK", "1"},
                         {"CROSS_SIZE", "2"},
                         {"MASTER_ADDR", "m"},
                         {"MASTER_PORT", "1234"},
                         {"CLEAVE_JOB_ID", "j"}}));
}

TEST(Machine, CountsTheDeviceFilesOfTheDriver) {
  const std::filesystem::path folder = testing::TempDir() + "/cleave_devices_" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  for (const char* name : {"nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm", "null"})
    std::ofstream(folder / name) << "";
  EXPECT_EQ(gpus_of_machine(folder), 2);
  std::filesystem::remove_all(folder);
  EXPECT_EQ(gpus_of_machine(folder), 0);
  EXPECT_EQ(select_hosts({{"localhost", slots_of_machine({}, 2, -1)}}, {.num_gpus = 2})[0].slots.size(), 2u);
  EXPECT_THROW(select_hosts({{"localhost", slots_of_machine({}, 2, 3)}}, {.num_gpus = 3}), Error);
}

TEST(Machine, HasSlotsOfTheVisibleGpus) {
  EXPECT_EQ(slots_of_machine({}, 3, -1), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(slots_of_machine({{"CUDA_VISIBLE_DEVICES", "5,2"}}, 8, 1), (std::vector<int>{5, 2}));
  EXPECT_TRUE(slots_of_machine({{"CUDA_VISIBLE_DEVICES", "GPU-8932f937"}}, 8, 1).empty());
  EXPECT_EQ(slots_of_machine({{"CUDA_VISIBLE_DEVICES", "5,2"}}, 0, 3), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(slots_of_machine({}, 0, -1), std::vector<int>{0});
  EXPECT_EQ(device_names({{"CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b"}}),
            (std::vector<std::string>{"MIG-a", "MIG-b"}));
  for (const char* numbers : {"", "0,1", "GPU-a,1"})
    EXPECT_TRUE(device_names({{"CUDA_VISIBLE_DEVICES", numbers}}).empty()) << numbers;
  EXPECT_TRUE(device_names({}).empty());
  for (const char* hidden : {"", "-1"}) EXPECT_EQ(usable_gpus({{"CUDA_VISIBLE_DEVICES", hidden}}), 0);
}

}  // namespace
}  // namespace cleave::launcher
