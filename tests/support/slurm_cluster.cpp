#include "tests/support/slurm_cluster.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "trireme/base/text.h"

namespace trireme::test {
namespace {

constexpr double kStart_s = 60;
constexpr const char* kReady = "both nodes are idle";

// The ports are fixed, because the cluster has a network of its own.
constexpr const char* kConfiguration = R"(ClusterName=test
SlurmctldHost=one
SlurmctldPort=16817
SlurmUser=root
AuthInfo=socket=FOLDER/munge.socket
StateSaveLocation=FOLDER/state
SlurmdSpoolDir=FOLDER/spool-%n
SlurmctldPidFile=FOLDER/slurmctld.pid
SlurmdPidFile=FOLDER/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
KillWait=10
SlurmdParameters=config_overrides
NodeName=one CPUs=2 NodeHostname=one NodeAddr=10.78.0.1 Port=16821
NodeName=two CPUs=2 NodeHostname=one NodeAddr=10.78.0.1 Port=16822
PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=INFINITE
)";

// Slurm resolves names only on a host with another address than that of the loopback.
constexpr const char* kDaemons = R"SH(set -e
cd "$1"
ip link set lo up
ip link add aside type veth peer name nowhere
ip addr add 10.78.0.1/24 dev aside
ip link set aside up
ip link set nowhere up
hostname one
printf '127.0.0.1 localhost\n10.78.0.1 one two\n' >hosts
mount --bind hosts /etc/hosts
mkdir state
(umask 077; head -c 1024 /dev/urandom >munge.key)
munged --foreground --force --key-file="$1/munge.key" --socket="$1/munge.socket" --pid-file="$1/munged.pid" \
  --log-file="$1/munged.log" --seed-file="$1/munged.seed" >munged.out 2>&1 &
slurmctld -D >slurmctld.out 2>&1 &
for node in one two; do slurmd -D -N $node >slurmd-$node.out 2>&1 & done
until [ "$(sinfo --noheader --states=idle --format=%D 2>/dev/null)" = 2 ]; do sleep 0.1; done
echo "both nodes are idle"
wait
)SH";

std::string path_with_programs() {
  const char* path = std::getenv("PATH");
  const std::string programs = bin("trireme");
  return text(programs.substr(0, programs.rfind('/')), ":", path == nullptr ? "/usr/bin:/bin" : path,
              ":/usr/sbin");
}

std::string missing_program() {
  for (const std::string name :
       {"munged", "slurmctld", "slurmd", "srun", "unshare", "nsenter", "setpriv", "ip"}) {
    bool found = false;
    for (const std::string& folder : split(path_with_programs(), ':')) {
      found = found || ::access(text(folder, "/", name).c_str(), X_OK) == 0;
    }
    if (!found) return name;
  }
  return "";
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size())) {
    text.replace(at, what.size(), with);
  }
  return text;
}

std::string last_words(const std::filesystem::path& folder) {
  std::ostringstream all;
  for (const char* name : {"munged.out", "slurmctld.out", "slurmd-one.out"})
    all << std::ifstream(folder / name).rdbuf();
  const std::string said = all.str();
  return said.substr(said.size() > 2000 ? said.size() - 2000 : 0);
}

}  // namespace

SlurmCluster::SlurmCluster() { unavailable_because_ = start(); }

SlurmCluster::~SlurmCluster() {
  if (init_ == 0) return;
  ::kill(init_, SIGKILL);  // ends the whole namespace before the folder is removed
  daemons_->wait(20);
}

std::string SlurmCluster::start() {
  if (::geteuid() != 0) return "a Slurm cluster in namespaces of its own needs root";
  const std::string missing = missing_program();
  if (!missing.empty()) return text(missing, " is not installed; tools/setup.sh test installs it");
  const std::string folder = folder_.path().string();
  std::ofstream(folder_ / "slurm.conf") << replaced(kConfiguration, "FOLDER", folder);
  const std::map<std::string, std::string> environment = {{"SLURM_CONF", folder + "/slurm.conf"},
                                                          {"PATH", path_with_programs()}};
  daemons_ = std::make_unique<ChildProcess>(
      std::vector<std::string>{"setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child",
                               "--net", "--mount", "--uts", "--ipc", "--mount-proc", "bash", "-c", kDaemons,
                               "slurm", folder},
      environment);
  const bool ready = daemons_->wait_for_output(kReady, kStart_s);
  const auto inits = daemons_->children();
  if (!inits.empty()) init_ = inits.front();
  if (ready) return "";
  if (inits.empty()) return text("no namespaces: ", daemons_->wait(0).err);
  throw std::runtime_error("Slurm did not start: " + last_words(folder_.path()));
}

std::vector<std::string> SlurmCluster::typed(const std::vector<std::string>& command) const {
  const std::string folder = folder_.path().string();
  std::vector<std::string> words = {"nsenter",
                                    "--target",
                                    text(init_),
                                    "--pid",
                                    "--net",
                                    "--mount",
                                    "--uts",
                                    "--ipc",
                                    "env",
                                    text("SLURM_CONF=", folder, "/slurm.conf"),
                                    text("PATH=", path_with_programs()),
                                    "sh",
                                    "-c",
                                    "cd \"$0\" && exec \"$@\"",
                                    folder};
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

std::string SlurmCluster::say(const std::vector<std::string>& command) const {
  const auto result = run(typed(command), {}, 30);
  if (result.exit_code != 0) throw std::runtime_error(text(join(command, " "), ": ", result.err));
  return std::string(trim(result.out));
}

}  // namespace trireme::test
