// Finds the rank of every launcher from its variables.
#include "launcher/discovery.h"

#include <gtest/gtest.h>

#include "launcher/slurm.h"

namespace cleave::launcher {
namespace {

struct TestDevice {
  int rank, world, local_rank, local_size, node_rank;
  bool operator==(const TestDevice&) const = default;
};
std::ostream& operator<<(std::ostream& out, const TestDevice& p) {
  return out << p.rank << "/" << p.world << " local " << p.local_rank << "/" << p.local_size << " node "
             << p.node_rank;
}

struct Row {
  const char* name;
  Environment env;
  TestDevice place;
  std::string master;
  int port;
  std::string by;  // start of launched_by
};

const Environment kTorch = {{"RANK", "5"},
                            {"WORLD_SIZE", "8"},
                            {"LOCAL_RANK", "1"},
                            {"MASTER_ADDR", "m"},
                            {"MASTER_PORT", "29400"},
                            {"LOCAL_WORLD_SIZE", "4"},
                            {"GROUP_RANK", "1"},
                            {"GROUP_WORLD_SIZE", "2"},
                            {"TORCHELASTIC_RUN_ID", "run"},
                            {"TORCHELASTIC_RESTART_COUNT", "2"},
                            {"TORCHELASTIC_USE_AGENT_STORE", "True"}};

Environment with(Environment base, const Environment& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

Environment without(Environment base, const std::vector<std::string>& names) {
  for (const auto& name : names) base.erase(name);
  return base;
}

const Environment kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                              {"OMPI_COMM_WORLD_SIZE", "4"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Environment kSlurm = {{"SLURM_PROCID", "5"},  {"SLURM_LOCALID", "1"},
                            {"SLURM_NODEID", "1"},  {"SLURM_STEP_NUM_TASKS", "8"},
                            {"SLURM_NTASKS", "16"}, {"SLURM_STEP_TASKS_PER_NODE", "4,2(x2)"},
                            {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NODELIST", "gnode[09-10,020]"},
                            {"SLURM_JOB_ID", "77"}, {"SLURM_RESTART_COUNT", "3"}};

const std::vector<Row>& rows() {
  static const std::vector<Row> table = {
      {"nothing", {}, {0, 1, 0, 1, 0}, "127.0.0.1", 29500, "no launcher"},
      {"torchrun", kTorch, {5, 8, 1, 4, 1}, "m", 29400, "torchrun"},
      {"torchrun in a SLURM step", with(kSlurm, kTorch), {5, 8, 1, 4, 1}, "m", 29400, "torchrun"},
      {"deepspeed",
       {{"RANK", "3"},
        {"WORLD_SIZE", "4"},
        {"LOCAL_RANK", "1"},
        {"MASTER_ADDR", "10.0.0.4"},
        {"MASTER_PORT", "29500"},
        {"CROSS_RANK", "1"},
        {"CROSS_SIZE", "2"},
        {"LOCAL_SIZE", "2"}},
       {3, 4, 1, 2, 1},
       "10.0.0.4",
       29500,
       "deepspeed"},
      {"Azure ML pytorch",
       {{"RANK", "11"},
        {"WORLD_SIZE", "16"},
        {"LOCAL_RANK", "3"},
        {"NODE_RANK", "1"},
        {"MASTER_ADDR", "10.0.0.4"},
        {"MASTER_PORT", "6105"},
        {"AZUREML_NODE_COUNT", "2"},
        {"AZUREML_PROCESS_NAME", "rank_11"},
        {"AZUREML_RUN_ID", "r1"},
        {"AZUREML_EXPERIMENT_ID", "e"}},
       {11, 16, 3, 8, 1},
       "10.0.0.4",
       6105,
       "Azure ML, pytorch"},
      {"Azure ML pytorch, where a library wrote its own count",
       {{"RANK", "1"},
        {"WORLD_SIZE", "2"},
        {"LOCAL_RANK", "1"},
        {"LOCAL_WORLD_SIZE", "1"},
        {"MASTER_ADDR", "10.0.0.4"},
        {"MASTER_PORT", "6105"},
        {"AZUREML_NODE_COUNT", "1"},
        {"AZUREML_RUN_ID", "r1"}},
       {1, 2, 1, 2, 0},
       "10.0.0.4",
       6105,
       "Azure ML, pytorch"},
      {"Azure ML mpi, two nodes",
       with(kOpenMpi, {{"AZ_BATCH_MASTER_NODE", "10.0.0.4:6000"}, {"AZUREML_EXPERIMENT_ID", "e"}}),
       {3, 4, 1, 2, 1},
       "10.0.0.4",
       6105,
       "Azure ML, mpi"},
      {"Azure ML mpi, one node",
       with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                       {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                       {"AZ_BATCHAI_MPI_MASTER_NODE", "localhost"},
                       {"AZUREML_EXPERIMENT_ID", "e"}}),
       {3, 4, 3, 4, 0},
       "127.0.0.1",
       54965,
       "Azure ML, mpi"},
      {"Azure ML tensorflow",
       {{"TF_CONFIG",
         R"({"cluster":{"worker":["host0:2222","host1:2222"],"ps":[]},"task":{"type":"worker","index":1}})"}},
       {1, 2, 0, 1, 1},
       "host0",
       6105,
       "a TensorFlow launcher"},
      {"TF_CONFIG with a chief",
       {{"TF_CONFIG",
         R"({"cluster":{"chief":["c:1"],"worker":["a:1","b:1"]},"task":{"type":"worker","index":1}})"}},
       {2, 3, 0, 1, 2},
       "c",
       6105,
       "a TensorFlow launcher"},
      {"Open MPI with an address",
       with(kOpenMpi, {{"MASTER_ADDR", "h"}, {"MASTER_PORT", "77"}}),
       {3, 4, 1, 2, 1},
       "h",
       77,
       "Open MPI"},
      {"Open MPI without an address",
       with(kOpenMpi,
            {{"OMPI_MCA_orte_hnp_uri", "877461504.0;tcp://192.0.2.2,198.51.100.1:38153;tcp6://[::1]:1"}}),
       {3, 4, 1, 2, 1},
       "192.0.2.2",
       29500,
       "Open MPI"},
      {"SageMaker mpi",
       with(kOpenMpi, {{"SM_HOSTS", R"(["algo-1","algo-2"])"}, {"SM_CURRENT_HOST", "algo-2"}}),
       {3, 4, 1, 2, 1},
       "algo-1",
       29500,
       "SageMaker"},
      {"Hydra",
       {{"PMI_RANK", "2"},
        {"PMI_SIZE", "4"},
        {"MPI_LOCALRANKID", "0"},
        {"MPI_LOCALNRANKS", "2"},
        {"MASTER_ADDR", "h"}},
       {2, 4, 0, 2, 1},
       "h",
       29500,
       "MPICH"},
      {"a SLURM step with PMI",
       with(kSlurm, {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}}),
       {5, 8, 1, 2, 1},
       "gnode09",
       0,
       "SLURM"},
      {"Hydra on one host",
       {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "4"}},
       {2, 4, 2, 4, 0},
       "127.0.0.1",
       29500,
       "MPICH"},
      {"a SLURM step", kSlurm, {5, 8, 1, 2, 1}, "gnode09", 0, "SLURM"},
      {"a SLURM batch script",
       {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}},
       {0, 1, 0, 1, 0},
       "127.0.0.1",
       29500,
       "no launcher"},
      {"a pod",
       {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "job-master-0"}, {"MASTER_PORT", "23456"}},
       {1, 2, 0, 1, 1},
       "job-master-0",
       23456,
       "one process per pod"},
      {"a pod of Kubeflow's",
       {{"RANK", "1"},
        {"WORLD_SIZE", "2"},
        {"MASTER_ADDR", "m"},
        {"MASTER_PORT", "23456"},
        {"PET_NNODES", "2"}},
       {1, 2, 0, 1, 1},
       "m",
       23456,
       "Kubeflow PyTorchJob"},
      {"a pod of Kubeflow Trainer",
       {{"PET_NNODES", "2"},
        {"PET_NPROC_PER_NODE", "auto"},
        {"PET_NODE_RANK", "1"},
        {"PET_MASTER_ADDR", "job-node-0-0.job"},
        {"PET_MASTER_PORT", "29400"}},
       {1, 2, 0, 1, 1},
       "job-node-0-0.job",
       29400,
       "Kubeflow TrainJob"},
      {"SageMaker without a distribution",
       {{"SM_HOSTS", R"(["algo-1","algo-2"])"}, {"SM_CURRENT_HOST", "algo-2"}},
       {1, 2, 0, 1, 1},
       "algo-1",
       29500,
       "SageMaker, once"},
      {"SageMaker on one host",
       {{"SM_HOSTS", R"(["algo-1"])"}, {"SM_CURRENT_HOST", "algo-1"}},
       {0, 1, 0, 1, 0},
       "127.0.0.1",
       29500,
       "no launcher"},
      {"Intel MPI",
       {{"PMI_RANK", "3"},
        {"PMI_SIZE", "4"},
        {"MPI_LOCALRANKID", "1"},
        {"MPI_LOCALNRANKS", "2"},
        {"MASTER_ADDR", "h"},
        {"I_MPI_MPIRUN", "mpirun"}},
       {3, 4, 1, 2, 1},
       "h",
       29500,
       "Intel MPI"},
      {"our launcher under another",
       with(kSlurm, {{"RANK", "1"},
                     {"WORLD_SIZE", "2"},
                     {"LOCAL_RANK", "1"},
                     {"LOCAL_WORLD_SIZE", "2"},
                     {"MASTER_ADDR", "127.0.0.1"},
                     {"MASTER_PORT", "4000"},
                     {"CLEAVE_LAUNCHED", "1"},
                     {"AZUREML_PROCESS_NAME", "main"}}),
       {1, 2, 1, 2, 0},
       "127.0.0.1",
       4000,
       "cleave launch"},
  };
  return table;
}

TEST(Discovery, FindsThePlaceFromEveryLauncher) {
  for (const Row& row : rows()) {
    const comm::RankInfo info = discover_ranks(row.env).info;
    const TestDevice got{info.rank, info.world, info.local_rank, info.local_size, info.node_rank};
    EXPECT_EQ(got, row.place) << row.name;
    EXPECT_EQ(info.master_addr, row.master) << row.name;
    if (row.port) {
      EXPECT_EQ(info.master_port, row.port) << row.name;
    }
    EXPECT_EQ(info.launched_by.rfind(row.by, 0), 0u) << row.name << ": " << info.launched_by;
  }
}

TEST(Discovery, FindsTheJobTheAttemptAndWhetherThePortIsTaken) {
  comm::RankInfo info = discover_ranks(kTorch).info;
  EXPECT_EQ(info.job_id, "run");
  EXPECT_EQ(info.attempt, 2);
  EXPECT_TRUE(info.port_is_taken);
  info = discover_ranks(kSlurm).info;
  EXPECT_EQ(info.job_id, "77.0");
  EXPECT_EQ(info.attempt, 3);
  EXPECT_FALSE(info.port_is_taken);
  info = discover_ranks(with(without(kTorch, {"TORCHELASTIC_RUN_ID"}),
                             {{"AZUREML_RUN_ID", "r1"},
                              {"AZUREML_CR_COMPUTE_CONTEXT", R"({"gpu_count":8,"run_attempt_count":4})"}}))
             .info;
  EXPECT_EQ(info.job_id, "r1");
  EXPECT_EQ(info.attempt, 4);
  info = discover_ranks(with(kTorch, {{"CLEAVE_LAUNCHED", "1"},
                                      {"CLEAVE_JOB_ID", "mine"},
                                      {"CLEAVE_ATTEMPT", "1"},
                                      {"CLEAVE_TOKEN", "t"}}))
             .info;
  EXPECT_EQ(info.job_id, "mine");
  EXPECT_EQ(info.attempt, 1);
  EXPECT_EQ(info.token, "t");
  EXPECT_FALSE(info.port_is_taken);
}

TEST(Discovery, GivesRanksOfOneJobOnePortAndTwoJobsTwo) {
  const auto port = [](const char* space, const char* rank) {
    return discover_ranks(with(kOpenMpi, {{"PMIX_NAMESPACE", space},
                                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                                          {"OMPI_COMM_WORLD_RANK", rank}}))
        .info.master_port;
  };
  EXPECT_EQ(port("100", "2"), port("100", "3"));
  EXPECT_NE(port("100", "2"), port("101", "2"));
}

TEST(Discovery, WarnsInABatchScript) {
  const Discovery found = discover_ranks({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}});
  ASSERT_EQ(found.warnings.size(), 1u);
  EXPECT_NE(found.warnings[0].find("SLURM_NTASKS=8"), std::string::npos);
  EXPECT_TRUE(discover_ranks(kSlurm).warnings.empty());
}

TEST(Discovery, PrefersTheCommandLine) {
  const comm::RankInfo info = discover_ranks(kTorch, {.rank = 1, .world = 3, .master = "host:1234"}).info;
  EXPECT_EQ(info.rank, 1);
  EXPECT_EQ(info.world, 3);
  EXPECT_EQ(info.master_addr, "host");
  EXPECT_EQ(info.master_port, 1234);
  EXPECT_EQ(discover_ranks({}, {.rank = 0, .world = 2, .master = "fe80::1"}).info.master_addr, "fe80::1");
}

TEST(Discovery, RejectsContradictionsAndNamesTheVariables) {
  struct Bad {
    const char* name;
    Environment env;
    std::vector<std::string> words;
  };
  const Bad bad[] = {
      {"rank beyond the world",
       with(kTorch, {{"RANK", "8"}}),
       {"rank 8 is out of range (the job has 8 ranks)"}},
      {"only RANK",
       {{"RANK", "1"}},
       {"MASTER_PORT: WORLD_SIZE, MASTER_ADDR, MASTER_PORT are missing",
        "and LOCAL_RANK if a host has several"}},
      {"only LOCAL_RANK",
       {{"LOCAL_RANK", "1"}},
       {": RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are missing"}},
      {"one of five missing", without(kTorch, {"MASTER_PORT"}), {"MASTER_PORT is missing"}},
      {"not a number", with(kTorch, {{"RANK", "one"}}), {"RANK='one'"}},
      {"negative", with(kTorch, {{"RANK", "-1"}}), {"RANK='-1'"}},
      {"too large", with(kTorch, {{"WORLD_SIZE", "99999999999"}}), {"WORLD_SIZE"}},
      {"local rank", with(kTorch, {{"LOCAL_RANK", "4"}}), {": local rank 4 of 4"}},
      {"port", with(kTorch, {{"MASTER_PORT", "70000"}}), {"port 70000"}},
      {"process name",
       with(kTorch, {{"AZUREML_PROCESS_NAME", "rank_3"}}),
       {"RANK=5", "AZUREML_PROCESS_NAME=rank_3"}},
      {"lone ranks",
       {{"OMPI_COMM_WORLD_RANK", "0"},
        {"OMPI_COMM_WORLD_SIZE", "1"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
        {"SLURM_STEP_NUM_TASKS", "8"}},
       {"OMPI_COMM_WORLD_SIZE=1", "SLURM_STEP_NUM_TASKS=8"}},
      {"half of Open MPI", without(kOpenMpi, {"OMPI_COMM_WORLD_SIZE"}), {"OMPI_COMM_WORLD_SIZE: missing"}},
      {"no address", kOpenMpi, {"MASTER_ADDR: missing", "-x MASTER_ADDR"}},
      {"parameter server",
       {{"TF_CONFIG", R"({"cluster":{"worker":["a:1"],"ps":["b:1"]},"task":{"type":"ps","index":0}})"}},
       {"parameter_server_count", "'ps'"}},
      {"TF_CONFIG is not JSON", {{"TF_CONFIG", "{"}}, {"TF_CONFIG"}},
      {"TF_CONFIG of another form",
       {{"TF_CONFIG", R"({"cluster":[1],"task":{"type":"worker","index":0}})"}},
       {"TF_CONFIG"}},
      {"several ranks a pod",
       {{"RANK", "1"},
        {"WORLD_SIZE", "8"},
        {"MASTER_ADDR", "m"},
        {"MASTER_PORT", "1"},
        {"PET_NPROC_PER_NODE", "4"}},
       {"PET_NPROC_PER_NODE=4"}},
      {"evaluator",
       {{"TF_CONFIG", R"({"cluster":{"worker":["a:1"]},"task":{"type":"evaluator","index":0}})"}},
       {"'evaluator'", "workers only"}},
      {"a node without a rank", {{"AZUREML_NODE_COUNT", "4"}}, {"AZUREML_NODE_COUNT=4", "RANK, WORLD_SIZE"}},
      {"a pod without a rank", {{"PET_NNODES", "2"}}, {"PET_NNODES=2", "MASTER_PORT are missing"}},
      {"no host of SageMaker's", {{"SM_HOSTS", R"(["a","b"])"}}, {"SM_CURRENT_HOST=''"}},
      {"half of Hydra", {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}, {"MPI_LOCALRANKID", "missing"}},
      {"Azure without a master", with(kOpenMpi, {{"AZUREML_EXPERIMENT_ID", "e"}}), {"AZ_BATCH_MASTER_NODE"}},
  };
  for (const Bad& b : bad) {
    try {
      discover_ranks(b.env);
      ADD_FAILURE() << b.name << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.exit(), Exit::usage) << b.name;
      for (const std::string& word : b.words)
        EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << b.name << ": " << e.what();
    }
  }
  EXPECT_THROW(discover_ranks({}, {.rank = 1}), Error);
  EXPECT_THROW(discover_ranks({}, {.rank = 2, .world = 2}), Error);
}

TEST(Slurm, ExpandsItsLists) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(expand_node_list("gnode[09-10,020],x"), (Names{"gnode09", "gnode10", "gnode020", "x"}));
  EXPECT_EQ(expand_node_list("r[1-2]n[01-03]"),
            (Names{"r1n01", "r1n02", "r1n03", "r2n01", "r2n02", "r2n03"}));
  EXPECT_EQ(expand_node_list("a[098-101]-ib"), (Names{"a098-ib", "a099-ib", "a100-ib", "a101-ib"}));
  EXPECT_EQ(expand_tasks_per_node("2(x3),1"), (std::vector<int>{2, 2, 2, 1}));
  EXPECT_EQ(expand_tasks_per_node("4"), (std::vector<int>{4}));
  for (const char* bad : {"", "a[1-", "a]1[", "a[x]", "a[3-1]", "a[1-99999999]", "a[[1]]", "a,,b", "a[]"})
    EXPECT_THROW(expand_node_list(bad), Error) << bad;
  for (const char* bad : {"x", "2(x", "2(x3", "2(y3)", ",", "1(x99999999)"})
    EXPECT_THROW(expand_tasks_per_node(bad), Error) << bad;
}

}  // namespace
}  // namespace cleave::launcher
