"""Table of gdpfed's optional parts (extras): the name of each, and where its code is.

An extra is found as a package of somebody else is: by the name of an entry point in a group. A package
declares its entry points in its own pyproject.toml. This project also runs where it is not installed, as an
app that Flower has unpacked, so its extras are declared here.
"""

from collections.abc import Mapping

EXTRAS: Mapping[str, Mapping[str, str]] = {
    "gdpfed.methods": {
        "client_statistics": "gdpfed.extras.statistics.methods:ClientStatistics",
        "edge_average": "gdpfed.extras.h2fdp.hier_baselines:EdgeAverage",
        "fedpcs": "gdpfed.extras.fedpcs.fedpcs:FedPCS",
        "h2fdp": "gdpfed.extras.h2fdp.h2fdp:H2FDP",
        "hfl_dp": "gdpfed.extras.h2fdp.hier_baselines:HFLDP",
        "hier_fedavg": "gdpfed.extras.h2fdp.hier_baselines:HierFedAvg",
        "mr_mtl": "gdpfed.extras.mr_mtl:MRMTL",
        "pedpfl": "gdpfed.extras.h2fdp.hier_baselines:PEDPFL",
        "record_statistics": "gdpfed.extras.statistics.methods:RecordStatistics",
        "sampled_fedavg": "gdpfed.extras.fedpcs.sampled_fedavg:SampledFedAvg",
        "trees": "gdpfed.extras.trees.method:Trees",
    },
    "gdpfed.models": {
        "flower_arrays": "gdpfed.flower.arrays:flower_arrays",
        "statistics": "gdpfed.extras.statistics.model:counts",
        "statistics_by_group": "gdpfed.extras.statistics.model:counts",
        "statistics_by_party": "gdpfed.extras.statistics.model:counts",
        "statistics_crossed": "gdpfed.extras.statistics.model:counts",
        "statistics_survival": "gdpfed.extras.statistics.model:counts",
        "trees": "gdpfed.extras.trees.model:trees",
    },
    "gdpfed.label_kinds": {"times_to_event": "gdpfed.extras.survival.labels:Times"},
    "gdpfed.losses": {"discrete_hazard": "gdpfed.extras.survival.hazards:discrete_hazard"},
    "gdpfed.metrics": {
        "concordance": "gdpfed.extras.survival.figures:CONCORDANCE",
        "integrated_brier": "gdpfed.extras.survival.figures:BRIER",
    },
    "gdpfed.works": {
        "client_statistics": "gdpfed.extras.statistics.client_work",
        "record_statistics": "gdpfed.extras.statistics.record_work",
    },
    "gdpfed.work_kinds": {"record_statistics": "gdpfed.extras.statistics.work_kind:OF_RECORDS"},
    "gdpfed.datasets": {"flower_app": "gdpfed.flower.arrays:no_records"},
    "gdpfed.conf": {"flower": "gdpfed.flower.options"},
    "gdpfed.server_sides": {
        "game": "gdpfed.extras.fedpcs.server_side:GameServer",
        "price": "gdpfed.extras.fedpcs.server_side:PriceServer",
    },
    "gdpfed.node_sides": {
        "game": "gdpfed.extras.fedpcs.node_side:GameNode",
        "price": "gdpfed.extras.fedpcs.node_side:PriceNode",
    },
    "gdpfed.stand_ins": {"edge": "gdpfed.extras.edges.edge_client:EDGE"},
    "gdpfed.server_extensions": {"edge": "gdpfed.extras.edges.edge:edge_of"},
    "gdpfed.plan_questions": {"price": "gdpfed.extras.fedpcs.price_question:QUESTION"},
    "gdpfed.terms": {
        "local_windows": "gdpfed.extras.h2fdp.subnet_sums:WindowTerms",
        "own_spending": "gdpfed.extras.fedpcs.path_terms:PathTerms",
    },
    "gdpfed.mechanism_reports": {
        "own_spending": "gdpfed.extras.fedpcs.budgets_card:BudgetsReport",
        "subnet_sums": "gdpfed.extras.h2fdp.subnet_tables:SubnetReport",
        "subnet_steps": "gdpfed.extras.h2fdp.subnet_tables:SubnetRecordReport",
    },
    "gdpfed.audit_rules": {
        "own_spending": "gdpfed.extras.fedpcs.audit.budget_checks:OwnBudgets",
        "subnet_sums": "gdpfed.extras.h2fdp.audit:SubnetsOfClients",
        "subnet_steps": "gdpfed.extras.h2fdp.audit:SubnetsOfRecords",
    },
    "gdpfed.audit_checks": {
        "client_statistics": "gdpfed.extras.statistics.audit.checks:check_statistics",
        "record_statistics": "gdpfed.extras.statistics.audit.checks:check_statistics",
        "trees": "gdpfed.extras.trees.audit:check_trees",
    },
    "gdpfed.audit_cards": {
        "own_spending": "gdpfed.extras.fedpcs.audit.card:BudgetsCard",
        "subnet_sums": "gdpfed.extras.h2fdp.audit:SubnetsCard",
        "subnet_steps": "gdpfed.extras.h2fdp.audit:SubnetRecordsCard",
    },
    "gdpfed.node_entries": {
        "local_windows": "gdpfed.extras.h2fdp.audit:WindowEntry",
        "own_spending": "gdpfed.extras.fedpcs.audit.budget_checks:PathEntry",
    },
    "gdpfed.experiments": {
        "noise": "gdpfed.extras.experiments.planned_noise:present_noise",
        "rates": "gdpfed.extras.experiments.planned_rates:present_rates",
        "steps": "gdpfed.extras.experiments.planned_steps:present_steps",
        "mean_field": "gdpfed.extras.fedpcs.game_experiments:present_games",
        "welfare": "gdpfed.extras.fedpcs.game_experiments:present_games",
        "server_cost": "gdpfed.extras.fedpcs.game_experiments:present_games",
        "caps": "gdpfed.extras.fedpcs.game_experiments:present_games",
        "control": "gdpfed.extras.h2fdp.control_experiment:present_control",
    },
    "gdpfed.audits": {
        "loop": "gdpfed.extras.canaries.loop_audit:audit_loop",
    },
    "gdpfed.commands": {
        "reproduce": "gdpfed.extras.experiments.reproduce_command:COMMAND",
        "stats": "gdpfed.extras.statistics.stats_command:COMMAND",
    },
    "gdpfed.command_modes": {
        "audit --attack": "gdpfed.extras.canaries.audit_measured:attack_model",
        "audit --canaries": "gdpfed.extras.canaries.audit_measured:measure_canaries",
        "simulate --multirun": "gdpfed.extras.experiments.sweep:sweep",
    },
    "gdpfed.machines": {"ray": "gdpfed.extras.ray_machines:RayMachines"},
}
"""Entry points of optional parts by group: each name, and what is imported at its first use."""
