#include <iostream>
#include <memory>

#include "cli/channel_arguments.h"
#include "cli/command.h"
#include "cli/ps_report.h"
#include "trireme/base/error.h"
#include "trireme/etcd/find.h"

namespace trireme::cli {

Command ps_command() {
  return {.name = "ps",
          .summary = "Report the state of a parameter server",
          .usage = "status ADDR [OPTIONS]",
          .examples =
              "  trireme ps status tcp:127.0.0.1:29600\n"
              "  trireme ps status tcp:10.0.0.1:29600 --secret-file job.secret --json\n",
          .declare = [](CLI::App& app) -> std::function<int()> {
            struct Given {
              std::string action;
              ps::ObserverOptions options;
              ChannelArguments channels;
              bool json = false;
            };
            auto given = std::make_shared<Given>();
            app.add_option("action", given->action, "status: what the coordinator and the servers say")
                ->required();
            app.add_option("address", given->options.coordinator,
                           "Where the coordinator serves, or etcd://HOST:PORT/PREFIX")
                ->type_name("ADDR")
                ->required();
            app.add_option("--timeout", given->options.timeout_s, "Seconds for all of it (default: 5)")
                ->type_name("S");
            app.add_flag("--json", given->json, "As JSON");
            declare_channels(app, given->channels);
            return [given] {
              require(given->action == "status", "trireme ps knows status, not '", given->action, "'");
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
