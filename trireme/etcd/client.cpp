#include "trireme/etcd/internal/client.h"

#include <nlohmann/json.hpp>

#include "trireme/etcd/internal/base64.h"

namespace trireme::etcd {
namespace {

using Json = nlohmann::json;

/// A number in etcd's JSON: 64-bit numbers are strings, and zeros are left out.
std::int64_t number(const Json& from, const char* name) {
  const auto found = from.find(name);
  if (found == from.end()) return 0;
  return found->is_string() ? std::stoll(found->get<std::string>()) : found->get<std::int64_t>();
}

std::string bytes(const Json& from, const char* name) {
  const auto decoded = from_base64(from.value(name, ""));
  if (!decoded) throw DataError(text("etcd's answer has a '", name, "' that is not base64"));
  return *decoded;
}

KeyValue pair_of(const Json& from) {
  return {.key = bytes(from, "key"),
          .value = bytes(from, "value"),
          .created = number(from, "create_revision"),
          .modified = number(from, "mod_revision"),
          .lease = number(from, "lease")};
}

std::vector<KeyValue> pairs_of(const Json& from) {
  std::vector<KeyValue> result;
  if (const auto pairs = from.find("kvs"); pairs != from.end())
    for (const Json& each : *pairs) result.push_back(pair_of(each));
  return result;
}

/// For any answer: it may come from a proxy or from another version.
template <class Read>
auto parsed(const std::string& reply, const Read& read) {
  try {
    return read(Json::parse(reply));
  } catch (const std::exception& error) {
    throw DataError(
        text("the answer '", reply.substr(0, 200), "' is not what etcd's version 3 says: ", error.what()));
  }
}

std::string message_in(const http::Reply& reply) {
  const Json json = Json::parse(reply.body, nullptr, false);
  if (json.is_object() && json.contains("error") && json["error"].is_string()) return json["error"];
  return text("HTTP ", reply.status, " ", reply.body.substr(0, 200));
}

Json condition_of(const Transaction::Condition& condition) {
  const bool created = condition.what == Transaction::Condition::What::kCreated;
  return {{"key", to_base64(condition.key)},
          {"target", created ? "CREATE" : "MOD"},
          {"result", "EQUAL"},
          {created ? "create_revision" : "mod_revision", std::to_string(condition.is)}};
}

Json request_of(const Transaction& transaction) {
  Json compare = Json::array(), success = Json::array(), failure = Json::array();
  for (const auto& each : transaction.when) {
    compare.push_back(condition_of(each));
    failure.push_back({{"request_range", {{"key", to_base64(each.key)}}}});
  }
  for (const auto& each : transaction.removals) {
    Json range = {{"key", to_base64(each.first)}};
    if (!each.end.empty()) range["range_end"] = to_base64(each.end);
    success.push_back({{"request_delete_range", std::move(range)}});
  }
  for (const auto& each : transaction.writes) {
    success.push_back({{"request_put",
                        {{"key", to_base64(each.key)},
                         {"value", to_base64(each.value)},
                         {"lease", std::to_string(each.lease)}}}});
  }
  return {{"compare", std::move(compare)}, {"success", std::move(success)}, {"failure", std::move(failure)}};
}

}  // namespace

Client::Client(std::vector<wire::Endpoint> members, double try_s)
    : members_(std::move(members)), try_s_(try_s) {
  require(!members_.empty(), "etcd has no members here; expected at least one HOST:PORT");
  require(try_s_ > 0, "a try of ", try_s_, " s is none; expected a time above zero");
}

std::string Client::call(const std::string& path, const std::string& json) {
  std::vector<std::string> tried;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const wire::Endpoint& member = members_[next_];
    const http::Reply reply =
        http_.send({.url = text("http://", member.text(), path), .json = &json, .timeout_s = try_s_});
    if (reply.status == 200) return reply.body;
    if (reply.status == 401 || reply.status == 403)
      throw Rejected(
          text("etcd at ", member.text(), " asks for a user, which is not supported: ", message_in(reply)));
    // 5xx: this member cannot answer now, without a majority. Another member may.
    if (reply.status != 0 && reply.status < 500)
      throw Rejected(text("etcd at ", member.text(), " rejects ", path, ": ", message_in(reply)));
    tried.push_back(text(member.text(), ": ", reply.status == 0 ? reply.failure : message_in(reply)));
    next_ = (next_ + 1) % members_.size();
  }
  throw Unreachable(text("no member of etcd has answered ", path, " (", join(tried, "; "),
                         "): see that a majority of them runs, and that these are their client ports"));
}

std::optional<KeyValue> Client::get(const std::string& key, Revision* at) {
  const std::string reply = call("/v3/kv/range", Json{{"key", to_base64(key)}}.dump());
  return parsed(reply, [&](const Json& json) -> std::optional<KeyValue> {
    if (at != nullptr) *at = number(json.at("header"), "revision");
    auto pairs = pairs_of(json);
    if (pairs.empty()) return std::nullopt;
    return std::move(pairs.front());
  });
}

Listing Client::list(const std::string& first, const std::string& end, std::int64_t most, Revision at) {
  const Json request = {{"key", to_base64(first)},
                        {"range_end", to_base64(end)},
                        {"limit", std::to_string(most)},
                        {"revision", std::to_string(at)}};
  return parsed(call("/v3/kv/range", request.dump()), [](const Json& json) {
    return Listing{.pairs = pairs_of(json), .more = json.value("more", false)};
  });
}

Outcome Client::commit(const Transaction& transaction) {
  const std::string reply = call("/v3/kv/txn", request_of(transaction).dump());
  return parsed(reply, [](const Json& json) {
    Outcome outcome = {.happened = json.value("succeeded", false),
                       .revision = number(json.at("header"), "revision")};
    if (outcome.happened || !json.contains("responses")) return outcome;
    for (const Json& each : json["responses"]) {
      auto pairs = pairs_of(each.at("response_range"));
      outcome.instead.push_back(pairs.empty() ? std::nullopt : std::optional(std::move(pairs.front())));
    }
    return outcome;
  });
}

LeaseId Client::grant(std::int64_t ttl_s) {
  const std::string reply = call("/v3/lease/grant", Json{{"TTL", std::to_string(ttl_s)}}.dump());
  return parsed(reply, [](const Json& json) { return number(json, "ID"); });
}

bool Client::keep_alive(LeaseId lease) {
  const std::string reply = call("/v3/lease/keepalive", Json{{"ID", std::to_string(lease)}}.dump());
  return parsed(reply, [](const Json& json) { return number(json.at("result"), "TTL") > 0; });
}

void Client::revoke(LeaseId lease) { call("/v3/lease/revoke", Json{{"ID", std::to_string(lease)}}.dump()); }

std::string end_of(std::string prefix) {
  ++prefix.back();
  return prefix;
}

}  // namespace trireme::etcd
