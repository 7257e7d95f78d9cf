#include <iostream>
#include <memory>

#include "cli/channel_arguments.h"
#include "cli/command.h"
#include "cli/ps_report.h"
#include "trireme/base/error.h"
#include "trireme/etcd/find.h"

namespace trireme::cli {
namespace {

/// For a key file of a process that may have this role only.
ExitCode print_key(const std::string& role, const ChannelArguments& channels) {
  const wire::Secret secret = security_of(channels).secret;
  require(!secret.empty() && secret.role().empty(),
          "the key of a role is made from the secret of the cluster: give --secret-file F with all of it");
  require(wire::Secret::is_role(role) && role.size() <= 128, "'", role,
          "' is no role; expected ROLE.NAME: worker.3, worker.all, observer.team");
  std::cout << secret.of_role(role).reveal() << std::endl;
  return kExitOk;
}

}  // namespace

Command ps_command() {
  return {.name = "ps",
          .summary = "Report the state of a parameter server, or make the key of a role",
          .usage = "status ADDR|key ROLE.NAME [OPTIONS]",
          .examples =
              "  trireme ps status tcp:127.0.0.1:29600\n"
              "  trireme ps status tcp:10.0.0.1:29600 --secret-file job.secret --json\n"
              "  (umask 077; trireme ps key worker.3 --secret-file job.secret > worker3.key)\n"
              "  (umask 077; trireme ps key observer.team --secret-file job.secret > status.key)\n",
          .declare = [](CLI::App& app) -> std::function<int()> {
            struct Given {
              std::string action;
              ps::ObserverOptions options;
              ChannelArguments channels;
              bool json = false;
            };
            auto given = std::make_shared<Given>();
            app.add_option("action", given->action,
                           "status: what the coordinator and the servers say; key: print the key of a role")
                ->required();
            app.add_option("address", given->options.coordinator,
                           "status: where the coordinator serves, or etcd://HOST:PORT/PREFIX; key: ROLE.NAME")
                ->type_name("ADDR|ROLE.NAME")
                ->required();
            app.add_option("--timeout", given->options.timeout_s, "Seconds for all of it (default: 5)")
                ->type_name("S");
            app.add_flag("--json", given->json, "As JSON");
            declare_channels(app, given->channels);
            return [given] {
              if (given->action == "key") return print_key(given->options.coordinator, given->channels);
              require(given->action == "status", "trireme ps knows status and key, not '", given->action,
                      "'");
              wire::NodeLoopOptions loop;
              loop.security = security_of(given->channels);
              loop.look_up = etcd::look_up_in_etcd();
              const ps::ClusterReport report = ps::look_at_cluster(given->options, std::move(loop));
              print_cluster(std::cout, report, given->json ? ReportFormat::kJson : ReportFormat::kText);
              return kExitOk;
            };
          }};
}

}  // namespace trireme::cli
