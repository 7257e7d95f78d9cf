#pragma once
// Rank, world and rendezvous address of this process, read from the variables that launchers set. Understood,
// in this order: RANK and its family (trireme launch, torchrun), OMPI_COMM_WORLD_* (mpirun of Open MPI),
// SLURM_* (srun). Without any of them it is a world of one. Thread-safe.

#include <functional>
#include <optional>
#include <string>

#include "trireme/wire/secret.h"

namespace trireme::comm {

/// The process that serves the rendezvous store of the ranks.
enum class StoreHost {
  kRankZero,       ///< rank 0, at master_addr and master_port
  kLauncher,       ///< the launcher, there
  kRankZeroAtPort  ///< rank 0, at a port that it passes to the others through the store of torchrun's agent
                   ///< there
};

struct LaunchEnvironment {
  std::string launcher = "none";  ///< "env", "torchrun", "openmpi", "slurm", "none"
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_addr = "127.0.0.1";
  int master_port = 29500;
  StoreHost store_host = StoreHost::kRankZero;
  bool one_host = false;           ///< by the launcher: all ranks share this host
  wire::Secret secret{};           ///< of the job: TRIREME_SECRET, TRIREME_SECRET_FILE
  std::string parameter_server{};  ///< address of its coordinator: TRIREME_PS_COORDINATOR; empty: none
  int restart_count = 0;           ///< how often the launcher has started this world again
  /// The same for the first start of a world and its restarts, another for every other start on this host;
  /// empty where the launcher has none (TRIREME_START_ID, TORCHELASTIC_RUN_ID, SLURM_JOB_ID).
  std::string start_id{};
  /// Of this process in an elastic job (trireme launch --elastic), whose launcher serves the store:
  /// TRIREME_MEMBER; empty: the job is not elastic. restart_count is then the generation of the world.
  std::string member{};
  int most_ranks = 0;     ///< of an elastic job: ranks that a world may have (TRIREME_MOST_RANKS)
  bool is_spare = false;  ///< of an elastic job: it has no rank yet (TRIREME_SPARE)
  /// Of an elastic job whose store may move to another host: the file with the store's present address
  /// (TRIREME_STORE_FILE); empty: the store does not move.
  std::string store_file{};
};

/// Looks one variable up; empty when it is not set.
using Lookup = std::function<std::optional<std::string>(const std::string& name)>;

/// Throws InvalidArgument that names the variable, its value and the expected one: not a number, rank not
/// below the world size, RANK without WORLD_SIZE, WORLD_SIZE > 1 without MASTER_ADDR. Also throws where the
/// job's secret cannot be read.
LaunchEnvironment read_launch_environment(const Lookup& lookup);

/// The same from this process's environment.
LaunchEnvironment read_launch_environment();

}  // namespace trireme::comm
