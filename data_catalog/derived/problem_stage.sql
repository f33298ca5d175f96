-- What became of each problem in each stage of $run: of an RL stage from its draws, of a filter from
-- its verdicts.
with drawn as (
    select stage, problem_id, count(*) as num_draws,
        count(*) filter (outcome = 'trained') as num_trained, arg_max(reason, step) as last_reason,
        sum(num_attempts) as num_attempts, sum(num_decided) as num_decided,
        sum(num_correct) as num_correct
    from draws where run = $run group by stage, problem_id
),
members as (
    select stage, problem_id, is_quarantined, reason from problem_sets where run = $run
),
rl as (
    select stage, problem_id,
        case when num_trained > 0 then 'trained' when num_draws > 0 then 'dropped'
            when is_quarantined then 'quarantined'
            when stage = 'held-out' then 'held out' else 'not drawn' end as decision,
        case when num_trained > 0 then 'its group had signal' when num_draws > 0 then last_reason
            when is_quarantined then reason when stage = 'held-out' then 'for evaluation only'
            else 'in the set, not drawn' end as reason,
        coalesce(num_draws, 0) as num_draws, coalesce(num_trained, 0) as num_trained,
        coalesce(num_attempts, 0) as num_attempts, coalesce(num_decided, 0) as num_decided,
        coalesce(num_correct, 0) as num_correct, null as checkpoint
    from members full join drawn using (stage, problem_id)
),
filters as (
    select stage, problem_id, decision, reason, 1 as num_draws, 0 as num_trained, num_attempts,
        num_decided, num_correct, checkpoint
    from filter_verdicts where run = $run
)
select $run as run, *, num_correct / nullif(num_decided, 0) as pass_rate
from (from rl union all by name from filters)
