#pragma once
// Functions that other workers may call, typed where they are written:
//
//   at::Tensor forward(const at::Tensor& x, double scale);
//   inline constexpr auto& kForward = rpc::function<"forward", &forward>;
//
//   struct Shard { at::Tensor forward(const at::Tensor& x); };
//   agent->rpc_sync("w1", rpc::function<"Shard.forward", &Shard::forward>, shard, x);   // shard: RRef<Shard>
//
// Where one source makes all workers, the function is its own name:
//
//   agent->rpc_sync<&forward>("w1", x, 2.0);
//   shard.rpc_sync<&Shard::forward>(x);
//
// A function that a program names is served there. Arguments and results are numbers, enums that end with
// kLast, strings, vectors, maps, optionals, pairs, tuples, and RRefs. Structs that list their fields
// (wire/fields.h) and types with a wire::Field, such as tensors (remote/autograd.h), are possible, too.
// Arguments are taken by value or const reference. A member function takes the RRef of its object first and
// runs on its owner. A result may be a Future, for which no thread waits. A shared_ptr stays on its worker,
// and the caller gets an RRef to its object (Agent::remote).

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "trireme/rpc/reference.h"
#include "trireme/rpc/served_call.h"

namespace trireme::rpc {

template <std::size_t N>
struct FunctionName {
  char text[N]{};
  consteval FunctionName(const char (&name)[N]) { std::copy_n(name, N, text); }  // NOLINT: from a literal
};

/// The type of `function<"name", &f>`, by the signature that callers see.
template <class Signature>
class Function;

/// The signature for callers.
template <class R, class... Args>
class Function<R(Args...)> {
 public:
  using Result = R;
  explicit Function(const FunctionRow& row) : row_(row) {}
  const FunctionRow& row() const { return row_; }

 private:
  const FunctionRow& row_;
};

namespace internal {

template <class... Parts>
struct PartList {};
/// The encoding of a container, or of a struct that lists its fields.
template <class T>
struct PartsOf;
template <class T>
struct PartsOf<std::vector<T>> {
  using Type = PartList<T>;
};
template <class Key, class T>
struct PartsOf<std::map<Key, T>> {
  using Type = PartList<Key, T>;
};
template <class T>
struct PartsOf<std::optional<T>> {
  using Type = PartList<T>;
};
template <class... Ts>
struct PartsOf<std::tuple<Ts...>> {
  using Type = PartList<std::decay_t<Ts>...>;
};
template <class First, class Second>
struct PartsOf<std::pair<First, Second>> {
  using Type = PartList<First, Second>;
};
template <class T>
requires requires(const T& value) { T::fields(value); }
struct PartsOf<T> : PartsOf<decltype(T::fields(std::declval<const T&>()))> {};

/// `Outer`: types that are looked at already, as a struct may hold a vector of itself.
template <class T, class... Outer>
consteval bool is_sendable() {
  constexpr auto all = []<class... Parts>(PartList<Parts...>) {
    return (is_sendable<Parts, T, Outer...>() && ...);
  };
  if constexpr ((std::is_same_v<T, Outer> || ...)) {
    return true;
  } else if constexpr (std::is_same_v<T, std::vector<bool>>) {
    return false;
  } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, std::string> ||
                       wire::HasField<T>) {
    return true;
  } else if constexpr (requires { typename PartsOf<T>::Type; }) {
    return all(typename PartsOf<T>::Type{});
  } else {
    return false;
  }
}

}  // namespace internal

/// Types that can be sent to another worker, with all of their members.
template <class T>
concept Sendable = internal::is_sendable<T>();

namespace internal {

template <class R>
struct ResultOf {
  using Type = R;
  static constexpr bool kIsFuture = false;
};
template <class R>
struct ResultOf<Future<R>> {
  using Type = R;
  static constexpr bool kIsFuture = true;
};
/// The type of the value of the reference to a result.
template <class R>
struct KeptAs {
  using Type = Stored<R>;
};
template <class T>
struct KeptAs<std::shared_ptr<T>> {
  using Type = T;
};

template <class Body>
struct BodyTraits;
template <class R, class... Args>
struct BodyTraits<R (*)(Args...)> {
  static_assert(((!std::is_lvalue_reference_v<Args> || std::is_const_v<std::remove_reference_t<Args>>)&&...),
                "arguments of remote functions are taken by value or const reference");
  using Result = typename ResultOf<std::decay_t<R>>::Type;
  using Signature = Result(std::decay_t<Args>...);
  using Arguments = std::tuple<std::decay_t<Args>...>;
  template <auto body>
  static R apply(Arguments& arguments) {
    return std::apply([](auto&... each) { return body(std::move(each)...); }, arguments);
  }
};
template <class C, class R, class... Args>
struct MethodTraits {
  using Result = typename ResultOf<std::decay_t<R>>::Type;
  using Signature = Result(RRef<C>, std::decay_t<Args>...);
  using Arguments = std::tuple<RRef<C>, std::decay_t<Args>...>;
  template <auto body>
  static std::decay_t<R> apply(Arguments& arguments) {
    return std::apply(
        [](RRef<C>& object, auto&... each) -> std::decay_t<R> {
          const std::shared_ptr<C> held = object.local_value();
          return ((*held).*body)(std::move(each)...);
        },
        arguments);
  }
};
template <class C, class R, class... Args>
struct BodyTraits<R (C::*)(Args...)> : MethodTraits<C, R, Args...> {};
template <class C, class R, class... Args>
struct BodyTraits<R (C::*)(Args...) const> : MethodTraits<C, R, Args...> {};

template <class R>
void give_back(const ServedCall& call, Stored<R> result) {
  if (call.stays()) {
    if constexpr (std::is_same_v<typename KeptAs<R>::Type, Stored<R>>) {
      return call.keep({std::make_shared<Stored<R>>(std::move(result)), &typeid(Stored<R>)});
    } else {
      require(result != nullptr, "'", call.function().name, "' has returned a null pointer");
      using Kept = typename KeptAs<R>::Type;
      return call.keep({std::move(result), &typeid(Kept)});
    }
  }
  if constexpr (Sendable<Stored<R>>) {
    call.answer(result);
  } else {
    throw InvalidArgument(text("the result of '", call.function().name, "' is ", readable(typeid(R).name()),
                               ", which stays where it is: call it with remote()"));
  }
}

template <auto body>
void serve(const std::shared_ptr<ServedCall>& call) {
  using Traits = BodyTraits<std::decay_t<decltype(body)>>;
  using Result = typename Traits::Result;
  auto arguments = call->read_arguments<typename Traits::Arguments>();
  const AgentScope scope(call->core());
  using Returned = decltype(Traits::template apply<body>(arguments));
  if constexpr (ResultOf<std::decay_t<Returned>>::kIsFuture) {
    const auto future = Traits::template apply<body>(arguments);
    future.when_done([call, future] {
      try {
        if (const auto error = future.error()) std::rethrow_exception(error);
        give_back<Result>(*call, *future.state()->value);
      } catch (...) {
        call->fail(std::current_exception());
      }
    });
  } else if constexpr (std::is_void_v<Returned>) {
    Traits::template apply<body>(arguments);
    give_back<void>(*call, {});
  } else {
    give_back<Result>(*call, Traits::template apply<body>(arguments));
  }
}

template <class... Args>
consteval bool are_sendable(const std::tuple<Args...>* /*arguments*/) {
  return (Sendable<Args> && ...);
}

template <auto body>
const FunctionRow& add(const std::string& name) {
  using Traits = BodyTraits<std::decay_t<decltype(body)>>;
  constexpr bool kHasArguments = are_sendable(static_cast<const typename Traits::Arguments*>(nullptr));
  static_assert(kHasArguments,
                "an argument of this function cannot be sent to another worker: expected numbers, strings, "
                "containers, structs with fields(), RRefs, or tensors (include trireme/remote/autograd.h)");
  FunctionRow row{.name = name, .signature = readable(typeid(typename Traits::Signature).name())};
  if constexpr (kHasArguments) row.run = &serve<body>;
  return add_function(std::move(row));
}

/// Its type has the name of the function.
template <auto body>
struct Named {};

/// "Shard::forward: at::Tensor (Shard::*)(at::Tensor const&)": overloads have the same first part.
template <auto body>
std::string name_of() {
  return name_in(typeid(Named<body>).name()) + ": " + readable(typeid(decltype(body)).name());
}

/// The function of calls without a name of their own.
template <auto body>
inline const Function<typename BodyTraits<std::decay_t<decltype(body)>>::Signature> function_itself{
    add<body>(name_of<body>())};

}  // namespace internal

/// The name under which others call `body`, a function or a member function. Naming it registers it in this
/// process while the program starts; both ends must name it alike.
template <FunctionName name, auto body>
inline const Function<typename internal::BodyTraits<std::decay_t<decltype(body)>>::Signature> function{
    internal::add<body>(name.text)};

}  // namespace trireme::rpc
