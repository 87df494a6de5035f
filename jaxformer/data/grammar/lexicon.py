"""The words: nouns with gender and class, adjectives with their four forms and place, verbs with their conjugation."""

from __future__ import annotations

import dataclasses

VOWELS = "aeiouyâàéèêëîïôûœæh"
ASPIRATED = frozenset("héros hibou hiboux haricot haricots huit onze haut haute hauts hautes hache haches".split())


def begins_with_vowel(word: str) -> bool:
    """Whether the word before it elides: a vowel, or an h that is not aspirated."""
    return word[0].lower() in VOWELS and word.lower() not in ASPIRATED


@dataclasses.dataclass(frozen=True)
class Noun:
    """A noun; `kinds` say what it can do: person, animal, food, drink, text, place, thing, clothes, vehicle, work."""

    english: str
    english_plural: str
    french: str
    french_plural: str
    feminine: bool
    kinds: frozenset[str]


@dataclasses.dataclass(frozen=True)
class Adjective:
    """An adjective; `before` if it stands before a French noun, `liaison` its masculine singular before a vowel."""

    english: str
    masculine: str
    feminine: str
    masculine_plural: str
    feminine_plural: str
    before: bool
    liaison: str
    kind: str

    def form(self, *, feminine: bool, plural: bool) -> str:
        """The form that agrees."""
        if plural:
            return self.feminine_plural if feminine else self.masculine_plural
        return self.feminine if feminine else self.masculine


@dataclasses.dataclass(frozen=True)
class Verb:
    """A verb.  English: base, third person, past, participle, -ing.  French: see `conjugation`."""

    english: tuple[str, str, str, str, str]
    infinitive: str
    present: tuple[str, str, str, str, str]  # je, il, nous, vous, ils
    participle: str
    future: str
    imperfect: str
    subject: str
    object: str


def _plural(word: str, given: str = "") -> str:
    if given:
        return given
    if word[-1] in "sxz":
        return word
    if word.endswith(("eau", "eu")):
        return word + "x"
    return word[:-2] + "aux" if word.endswith("al") else word + "s"


def _english_plural(word: str) -> str:
    if word.endswith(("s", "x", "ch", "sh")):
        return word + "es"
    return word[:-1] + "ies" if word.endswith("y") and word[-2] not in "aeiou" else word + "s"


def _nouns(table: str) -> tuple[Noun, ...]:
    """Lines of ``english[/plural] french[/plural] m|f kinds``; an underscore is a space."""
    nouns = []
    for line in table.strip().splitlines():
        english, french, gender, kinds = line.split()
        one, _, many = english.partition("/")
        un, _, des = french.partition("/")
        nouns.append(Noun(one, many or _english_plural(one), un, _plural(un, des), gender == "f", frozenset(kinds.split(","))))
    return tuple(nouns)


NOUNS = _nouns("""
man/men homme m person
woman/women femme f person
boy garçon m person
girl fille f person
doctor médecin m person,worker
teacher professeur m person,worker
farmer fermier m person,worker
neighbour voisin m person
queen reine f person
king roi m person
student étudiant m person
singer chanteuse f person,worker
actor acteur m person,worker
actress actrice f person,worker
child/children enfant m person
nurse infirmière f person,worker
lawyer avocat m person,worker
baker boulanger m person,worker
hero/heroes héros m person
uncle oncle m person,family
aunt tante f person,family
brother frère m person,family
sister sœur f person,family
mother mère f person,family
father père m person,family
friend ami m person,family
cousin cousine f person,family
dog chien m animal
cat chat m animal
horse cheval/chevaux m animal
cow vache f animal
bird oiseau m animal
owl hibou/hiboux m animal
goat chèvre f animal
mouse/mice souris f animal
fish/fish poisson m animal
hen poule f animal
apple pomme f food,thing
orange orange f food,thing
pear poire f food,thing
egg œuf m food,thing
cake gâteau m food,thing
tomato/tomatoes tomate f food,thing
sandwich sandwich m food,thing
bean haricot m food,thing
book livre m text,thing
letter lettre f text,thing
newspaper journal/journaux m text,thing
story histoire f text
poem poème m text
article article m text
magazine revue f text,thing
house maison f place,building
school école f place,building
church église f place,building
hotel hôtel m place,building
hospital hôpital/hôpitaux m place,building
station gare f place,building
museum musée m place,building
library bibliothèque f place,building
market marché m place
garden jardin m place
village village m place
city ville f place
street rue f place
beach plage f place
island île f place
forest forêt f place
kitchen cuisine f place
office bureau m place,building
castle château m place,building
car voiture f vehicle,thing
bicycle vélo m vehicle,thing
boat bateau m vehicle,thing
train train m vehicle
bus autobus m vehicle
plane avion m vehicle
table table f thing
chair chaise f thing
door porte f thing
window fenêtre f thing
key clé f thing
lamp lampe f thing
box boîte f thing
watch montre f thing
bag sac m thing
ball balle f thing
bed lit m thing
knife/knives couteau m thing
plate assiette f thing
glass verre m thing
umbrella parapluie m thing
tree arbre m thing
flower fleur f thing
stone pierre f thing
computer ordinateur m thing
picture tableau m thing
hat chapeau m clothes,thing
coat manteau m clothes,thing
shirt chemise f clothes,thing
dress robe f clothes,thing
shoe chaussure f clothes,thing
scarf/scarves écharpe f clothes,thing
""")


def _adjectives(table: str) -> tuple[Adjective, ...]:
    """Lines of ``english kind before|after masculine [feminine [masculine-plural [liaison]]]``."""
    found = []
    for line in table.strip().splitlines():
        english, kind, place, masculine, *rest = line.split()
        feminine = rest[0] if rest else masculine if masculine.endswith("e") else masculine + "e"
        many = rest[1] if len(rest) > 1 else _plural(masculine)
        liaison = rest[2] if len(rest) > 2 else masculine
        found.append(Adjective(english, masculine, feminine, many, feminine + "s", place == "before", liaison, kind))
    return tuple(found)


ADJECTIVES = _adjectives("""
small size before petit
big size before grand
old age before vieux vieille vieux vieil
young age before jeune
new age before nouveau nouvelle nouveaux nouvel
beautiful look before beau belle beaux bel
good worth before bon bonne
bad worth before mauvais mauvaise
pretty look before joli
white colour after blanc blanche
black colour after noir
red colour after rouge
green colour after vert
blue colour after bleu bleue bleus
yellow colour after jaune
grey colour after gris grise
brown colour after brun
French origin after français française
Italian origin after italien italienne
English origin after anglais anglaise
Spanish origin after espagnol
Japanese origin after japonais japonaise
American origin after américain
happy mood after heureux heureuse
sad mood after triste
tired mood after fatigué
angry mood after furieux furieuse
rich mood after riche
kind mood after gentil gentille
proud mood after fier fière
intelligent mood after intelligent
famous mood after célèbre
heavy state after lourd
light state after léger légère
clean state after propre
expensive state after cher chère
broken state after cassé
empty state after vide
round state after rond
strong worth after fort
""")


def _verb(english: str, infinitive: str, subject: str, object_: str, irregular: str = "") -> Verb:
    """English principal parts; French regular -er unless `irregular` gives ``present;participle;future;imperfect``."""
    parts = tuple(english.split("/"))
    if irregular:
        present, participle, future, imperfect = irregular.split(";")
        forms = tuple(present.split())
    else:
        stem = infinitive[:-2]
        soft = stem + "e" if stem.endswith("g") else stem[:-1] + "ç" if stem.endswith("c") else stem
        forms = (stem + "e", stem + "e", soft + "ons", stem + "ez", stem + "ent")
        participle, future, imperfect = stem + "é", infinitive, soft
    return Verb(parts, infinitive, forms, participle, future, imperfect, subject, object_)  # pyright: ignore


TRANSITIVE = (
    _verb("see/sees/saw/seen/seeing", "voir", "person", "any", "vois voit voyons voyez voient;vu;verr;voy"),
    _verb("watch/watches/watched/watched/watching", "regarder", "person", "any"),
    _verb("find/finds/found/found/finding", "trouver", "person", "any"),
    _verb("look for/looks for/looked for/looked for/looking for", "chercher", "person", "any"),
    _verb("love/loves/loved/loved/loving", "aimer", "person", "any"),
    _verb("show/shows/showed/shown/showing", "montrer", "person", "thing"),
    _verb("buy/buys/bought/bought/buying", "acheter", "person", "thing", "achète achète achetons achetez achètent;acheté;achèter;achet"),
    _verb("sell/sells/sold/sold/selling", "vendre", "person", "thing", "vends vend vendons vendez vendent;vendu;vendr;vend"),
    _verb("carry/carries/carried/carried/carrying", "porter", "person", "thing"),
    _verb("paint/paints/painted/painted/painting", "peindre", "person", "thing", "peins peint peignons peignez peignent;peint;peindr;peign"),
    _verb("lose/loses/lost/lost/losing", "perdre", "person", "thing", "perds perd perdons perdez perdent;perdu;perdr;perd"),
    _verb("clean/cleans/cleaned/cleaned/cleaning", "nettoyer", "person", "thing", "nettoie nettoie nettoyons nettoyez nettoient;nettoyé;nettoier;nettoy"),
    _verb("break/breaks/broke/broken/breaking", "casser", "person", "thing"),
    _verb("hide/hides/hid/hidden/hiding", "cacher", "person", "thing"),
    _verb("eat/eats/ate/eaten/eating", "manger", "person", "food"),
    _verb("cut/cuts/cut/cut/cutting", "couper", "person", "food"),
    _verb("read/reads/read/read/reading", "lire", "person", "text", "lis lit lisons lisez lisent;lu;lir;lis"),
    _verb("write/writes/wrote/written/writing", "écrire", "person", "text", "écris écrit écrivons écrivez écrivent;écrit;écrir;écriv"),
    _verb("forget/forgets/forgot/forgotten/forgetting", "oublier", "person", "text"),
    _verb("visit/visits/visited/visited/visiting", "visiter", "person", "place"),
    _verb("leave/leaves/left/left/leaving", "quitter", "person", "place"),
    _verb("build/builds/built/built/building", "construire", "person", "building", "construis construit construisons construisez construisent;construit;construir;construis"),
    _verb("drive/drives/drove/driven/driving", "conduire", "person", "vehicle", "conduis conduit conduisons conduisez conduisent;conduit;conduir;conduis"),
    _verb("wear/wears/wore/worn/wearing", "porter", "person", "clothes"),
    _verb("call/calls/called/called/calling", "appeler", "person", "person", "appelle appelle appelons appelez appellent;appelé;appeller;appel"),
    _verb("help/helps/helped/helped/helping", "aider", "person", "person"),
    _verb("thank/thanks/thanked/thanked/thanking", "remercier", "person", "person"),
    _verb("follow/follows/followed/followed/following", "suivre", "being", "being", "suis suit suivons suivez suivent;suivi;suivr;suiv"),
)

INTRANSITIVE = (
    _verb("sleep/sleeps/slept/slept/sleeping", "dormir", "being", "", "dors dort dormons dormez dorment;dormi;dormir;dorm"),
    _verb("work/works/worked/worked/working", "travailler", "person", ""),
    _verb("sing/sings/sang/sung/singing", "chanter", "person", ""),
    _verb("dance/dances/danced/danced/dancing", "danser", "person", ""),
    _verb("wait/waits/waited/waited/waiting", "attendre", "being", "", "attends attend attendons attendez attendent;attendu;attendr;attend"),
    _verb("run/runs/ran/run/running", "courir", "being", "", "cours court courons courez courent;couru;courr;cour"),
    _verb("swim/swims/swam/swum/swimming", "nager", "being", ""),
    _verb("smile/smiles/smiled/smiled/smiling", "sourire", "person", "", "souris sourit sourions souriez sourient;souri;sourir;souri"),
)

MOTION = (  # with être in the past, and a place: "to the market"
    _verb("go/goes/went/gone/going", "aller", "being", "to", "vais va allons allez vont;allé;ir;all"),
    _verb("come/comes/came/come/coming", "venir", "being", "to", "viens vient venons venez viennent;venu;viendr;ven"),
    _verb("return/returns/returned/returned/returning", "retourner", "being", "to"),
    _verb("arrive/arrives/arrived/arrived/arriving", "arriver", "being", "at"),
    _verb("stay/stays/stayed/stayed/staying", "rester", "being", "at"),
)

PLAY = _verb("play/plays/played/played/playing", "jouer", "person", "")
KNOW_PERSON = _verb("know/knows/knew/known/knowing", "connaître", "person", "person", "connais connaît connaissons connaissez connaissent;connu;connaîtr;connaiss")
KNOW_FACT = _verb("know/knows/knew/known/knowing", "savoir", "person", "", "sais sait savons savez savent;su;saur;sav")
MISS_TRAIN = _verb("miss/misses/missed/missed/missing", "rater", "person", "vehicle")
MISS_PERSON = _verb("miss/misses/missed/missed/missing", "manquer", "person", "")
DRINK = _verb("drink/drinks/drank/drunk/drinking", "boire", "being", "", "bois boit buvons buvez boivent;bu;boir;buv")
EAT = TRANSITIVE[14]
HAVE = _verb("have/has/had/had/having", "avoir", "person", "thing", "ai a avons avez ont;eu;aur;av")
BE = _verb("be/is/was/been/being", "être", "any", "", "suis est sommes êtes sont;été;ser;ét")

MASSES = {  # what one eats or drinks some of: English, French, feminine
    "bread": ("pain", False, "food"), "meat": ("viande", True, "food"), "cheese": ("fromage", False, "food"),
    "soup": ("soupe", True, "food"), "rice": ("riz", False, "food"), "water": ("eau", True, "drink"),
    "milk": ("lait", False, "drink"), "wine": ("vin", False, "drink"), "tea": ("thé", False, "drink"),
}  # fmt: skip

INSTRUMENTS = {"piano": ("piano", False), "violin": ("violon", False), "guitar": ("guitare", True), "flute": ("flûte", True)}
SPORTS = {"football": ("football", False), "tennis": ("tennis", False), "chess": ("échecs", None), "cards": ("cartes", None)}
MONTHS = dict(
    zip(
        "January February March April May June July August September October November December".split(),
        "janvier février mars avril mai juin juillet août septembre octobre novembre décembre".split(),
        strict=True,
    )
)
NUMBERS = dict(zip("two three four five six ten".split(), "deux trois quatre cinq six dix".split(), strict=True))
INSTITUTIONS = (  # noun of two adjectives, which French puts after it in the opposite order
    ("Area", "zone", True), ("Community", "communauté", True), ("Union", "union", True), ("System", "système", False),
    ("Council", "conseil", False), ("Programme", "programme", False), ("Agency", "agence", True), ("Forum", "forum", False),
)  # fmt: skip
OUTER = (("European", "européen", "européenne"), ("African", "africain", "africaine"), ("American", "américain", "américaine"),
         ("Asian", "asiatique", "asiatique"), ("French", "français", "française"))  # fmt: skip
INNER = (("Economic", "économique"), ("Political", "politique"), ("Monetary", "monétaire"), ("Scientific", "scientifique"),
         ("Historical", "historique"), ("Public", "public/publique"))  # fmt: skip
DOCUMENTS = (("agreement", "accord", False), ("treaty", "traité", False), ("report", "rapport", False),
             ("law", "loi", True), ("convention", "convention", True), ("letter", "lettre", True))  # fmt: skip
PASSIVES = (("signed", "signé"), ("published", "publié"), ("adopted", "adopté"), ("rejected", "rejeté"),
            ("translated", "traduit"), ("presented", "présenté"))  # fmt: skip
